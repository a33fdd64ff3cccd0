# SPDX-License-Identifier: Apache-2.0
"""The pytest plug-in: real suites in processes of their own."""

import json
import os

import pytest

from bazel import programs
from python_shim.testing import parked

CONFTEST = "import torch  # as suites do: the plug-in came before\n"
MODULE = """
import pytest, torch
from torch import nn

kept = []

@pytest.fixture(scope="module")
def net():
    return type("Net", (nn.Sequential,), {})(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()

def run(net, rows):
    with torch.no_grad():
        return net(torch.randn(rows, 256, device="cuda"))

@pytest.mark.limit_gpu_memory("1 MiB")
def test_small(net):
    run(net, 8)

@pytest.mark.limit_gpu_memory("1 MiB")
def test_large(net):
    run(net, ROWS)

def test_keeps(net):
    kept.append(run(net, 64))

def test_elsewhere():
    pass
"""
SIMULATED = ("--stratalloc-simulate", "64MiB")


@pytest.fixture(name="suite")
def _suite(tmp_path):
    """Runs pytest on the module: (exit code, output)."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "early.py").write_text("import torch\n")

    def run(*options, rows=8, text=MODULE, folder=(str(tmp_path),)):
        (tmp_path / "test_net.py").write_text(text.replace("ROWS", str(rows)))
        done = programs.run(
            *parked.command("pytest", "-p", "no:cacheprovider", "-q",
                            *parked.OUR_PLUGIN_ALONE, *options, *folder),
            cwd=tmp_path, env={**os.environ, "COLUMNS": "200"})
        return done.returncode, done.stdout + done.stderr

    run.folder = tmp_path
    return run


def test_a_limit_names_the_layers(suite):
    assert suite(*SIMULATED)[0] == 0
    code, text = suite(*SIMULATED, rows=2048)
    assert code == 1 and "1 failed, 3 passed" in text
    assert "test_large" in text and "limit 1 MiB: Net (input) 2 MiB" in text
    assert "0 refused calls" in text


def test_what_a_test_leaves_is_a_leak(suite):
    code, text = suite(*SIMULATED, "--stratalloc-leaks")
    assert code == 1 and "4 passed, 1 error" in text
    assert "ERROR at teardown of test_keeps" in text
    assert "the test leaves 64 KiB behind: Net.2 (activation) 64 KiB" in text
    assert suite(*SIMULATED, "--stratalloc-leaks-above", "64KiB")[0] == 0


FIXTURES = """
import pytest, stratalloc, torch
from torch import nn

kept = []

def net():
    return nn.Linear(512, 512).cuda()

@pytest.fixture
def own():
    return net()

@pytest.fixture(scope="module")
def shared():
    return [net(), torch.empty(4 << 20, dtype=torch.uint8, device="cuda")]

def test_trains_its_own(own):
    own(torch.randn(8, 512, device="cuda")).sum().backward()

def test_first_to_use_what_is_shared(shared):
    with torch.no_grad():
        shared[0](torch.randn(8, 512, device="cuda"))

def test_frees_more_than_it_keeps(shared):
    shared.pop()
    with stratalloc.scope("cache"):
        kept.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda"))

def test_fails():
    held = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    assert not held.numel()

@pytest.mark.limit_gpu_memory("5 MiB")
def test_after_it():
    torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
"""


def test_fixtures_are_no_leaks_and_failures_are_nobody_elses(suite):
    code, text = suite(*SIMULATED, "--stratalloc-leaks", text=FIXTURES)
    assert code == 1 and "1 failed, 4 passed, 1 error" in text, text
    assert "FAILED" in text and "test_net.py::test_fails" in text
    assert "ERROR at teardown of test_frees_more_than_it_keeps" in text
    assert "the test leaves 2 MiB behind: cache (unknown) 2 MiB" in text


def test_a_budget_is_written_and_broken_by_layer(suite):
    code, text = suite(*SIMULATED, "--stratalloc-update-budgets")
    file = suite.folder / "test_net.budget.json"
    assert code == 0 and str(file) in text
    content = json.loads(file.read_text())
    assert set(content["tests"]) == {"test_small", "test_large", "test_keeps",
                                     "test_elsewhere"}
    for test in content["tests"].values():
        assert sum(test["layers"].values()) == test["peak"]
    assert suite(*SIMULATED)[0] == 0
    code, text = suite(*SIMULATED, rows=512)
    assert code == 1 and "above the budget of" in text
    assert "+504 KiB    Net (input): 8 KiB -> 512 KiB" in text
    content["tolerance"] = 9
    file.write_text(json.dumps(content))
    assert suite(*SIMULATED, "-k", "large", rows=100)[0] == 0
    suite(*SIMULATED, "--stratalloc-update-budgets", "-k", "small")
    again = json.loads(file.read_text())
    assert again["tolerance"] == 9
    assert again["tests"]["test_large"] == content["tests"]["test_large"]


ORDER = """
import pytest, torch
from torch import nn

@pytest.mark.limit_gpu_memory("2 MiB")
def test_a():
    torch.empty(1 << 20, dtype=torch.uint8, device="cuda")

@pytest.mark.limit_gpu_memory("2 MiB")
def test_b():
    nn.Linear(64, 64).cuda()(torch.ones(8, 64, device="cuda"))

@pytest.mark.limit_gpu_memory("2 MiB")
def test_c():
    nn.Linear(64, 64).cuda()(torch.ones(8, 64, device="cuda"))
"""


def test_the_order_of_tests_is_not_seen(suite):
    """On a card whose libraries keep 8 MiB from their first use on."""
    card = (*SIMULATED, "--stratalloc-card", "t4")
    code, text = suite(*card, "--stratalloc-update-budgets", text=ORDER)
    assert code == 0, text
    module = str(suite.folder / "test_net.py")
    for order in ("abc", "cba", "bca"):
        named = [f"{module}::test_{name}" for name in order]
        code, text = suite(*card, *named, text=ORDER, folder=())
        assert code == 0 and "3 passed" in text, (order, text)


# As pytest-rerunfailures does with the reports of its tests.
KEEPS_TRACEBACKS = """
import pytest, torch

kept = []

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.excinfo:
        kept.append(call.excinfo)
    return (yield)

@pytest.fixture
def forget():
    return kept.clear
"""
FAILED_BEFORE = """
import gc, pytest, torch
MB = 1 << 20

def ones(megabytes):
    return torch.ones(megabytes * MB, dtype=torch.uint8, device="cuda")

@pytest.fixture(scope="module")
def wide():
    return ones(8)

@pytest.mark.parametrize("i", range(2))
def test_fails(i):
    big = ones(40)
    assert not big.numel()

@pytest.mark.limit_gpu_memory("33 MiB")
def test_within():
    ones(32)

@pytest.mark.limit_gpu_memory("16 MiB")
def test_above():
    ones(32)

@pytest.mark.limit_gpu_memory("1 MiB")
@pytest.mark.parametrize("i", range(2))
def test_uses_wide(i, request):
    wide = request.getfixturevalue("wide")

@pytest.mark.limit_gpu_memory("1 MiB")
def test_beside_wide():
    ones(1)

@pytest.mark.limit_gpu_memory("33 MiB")
def test_frees_with_its_own_there(forget):
    mine = ones(32)
    forget()
    gc.collect()
    assert torch.cuda.memory_allocated() == 40 * MB

@pytest.mark.limit_gpu_memory("33 MiB")
def test_fails_again():
    big = ones(100)
    assert not big.numel()

@pytest.mark.limit_gpu_memory("100 MiB")
def test_frees_and_takes_more(forget):
    forget()
    gc.collect()
    ones(101)
"""


def test_limit_counts_from_what_was_there_before(suite):
    conftest = suite.folder / "conftest.py"
    conftest.write_text(KEEPS_TRACEBACKS)
    simulated = ("--stratalloc-simulate", "256MiB")
    code, text = suite(*simulated, "-rA", text=FAILED_BEFORE)
    passed = {line.split("::")[1] for line in text.splitlines()
              if line.startswith("PASSED")}
    assert code == 1 and passed == {"test_within", "test_beside_wide",
                                    "test_frees_with_its_own_there"}, text
    assert ("the device held 32 MiB at once, limit 16 MiB: (no scope) (unknown) "
            "32 MiB\n80 MiB that was there before the test began is not "
            "counted: (no scope) (unknown) 80 MiB; tracebacks of exceptions "
            "keep it: test_fails (test_net.py:15) 80 MiB\n") in text, text
    assert "88 MiB" not in text, "what a fixture of its own holds is counted"
    assert text.count("the device held 8 MiB at once, limit 1 MiB") >= 2, text
    assert "the device held 101 MiB at once, limit 100 MiB" in text, text


EVICTED_BEFORE = """
import pytest, stratalloc, torch
from torch import nn
MB = 1 << 20
kept = []

def test_leaves_parameters():
    kept.append(nn.Parameter(torch.ones(10 * MB, device="cuda")))

@pytest.mark.limit_gpu_memory("50 MiB")
def test_pushes_them_out():
    torch.ones(60 * MB, dtype=torch.uint8, device="cuda")
    assert stratalloc.stats().tiers["bytes_evicted"] > 0

@pytest.mark.limit_gpu_memory("10 MiB")
def test_brings_them_back():
    assert stratalloc.restore(kept[0]) > 0
"""


def test_memory_that_left_and_returned_is_not_the_tests(suite, monkeypatch):
    monkeypatch.setenv("STRATALLOC_CONF", "host_budget:64MiB,disk_budget:0")
    code, text = suite(*SIMULATED, text=EVICTED_BEFORE)
    assert code == 1 and "1 failed, 2 passed" in text, text
    assert "the device held 60 MiB at once, limit 50 MiB" in text, text
    assert "40 MiB that was there before the test began" in text, text


def test_lost_events_of_the_test_are_said(suite):
    (suite.folder / "conftest.py").write_text(KEEPS_TRACEBACKS + """
from stratalloc.telemetry import recording

read = recording.read

def lossy(path):
    run = read(path)
    run.dropped = 7
    return run

recording.read = lossy
""")
    code, text = suite("--stratalloc-simulate", "256MiB", "-k",
                       "fails or above", text=FAILED_BEFORE)
    assert code == 1 and "the device held 112 MiB at once, limit 16" in text
    assert ("up to 80 MiB of it was there before the test began: (no scope) "
            "(unknown) 80 MiB; tracebacks") in text, text
    assert "how much is not known: 7 events of the test were lost" in text


def test_budget_after_failed_test_is_that_without_it(suite):
    (suite.folder / "conftest.py").write_text(KEEPS_TRACEBACKS)
    file = suite.folder / "test_net.budget.json"
    update = ("--stratalloc-simulate", "256MiB",
              "--stratalloc-update-budgets")
    found = []
    for chosen in ((), ("-k", "above or within or beside or frees")):
        suite(*update, *chosen, text=FAILED_BEFORE.replace(
            "== 40 * MB", "> 0"))
        tests = json.loads(file.read_text())["tests"]
        found.append({name: test for name, test in tests.items()
                      if "uses" not in name})
        file.unlink()
    assert found[0] == found[1], found
    assert found[0]["test_within"]["peak"] == 32 << 20
    assert found[0]["test_frees_and_takes_more"]["peak"] == 101 << 20


def test_a_workspace_of_the_tests_own_counts(suite):
    text = """
import pytest, stratalloc, torch

@pytest.mark.limit_gpu_memory("1 MiB")
def test_it():
    with stratalloc.scope("library", category="workspace"):
        torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
"""
    code, out = suite(*SIMULATED, text=text)
    assert code == 1 and "limit 1 MiB: library (workspace) 4 MiB" in out, out


def test_a_reset_of_the_peak_hides_nothing(suite):
    text = """
import pytest, torch

@pytest.mark.limit_gpu_memory("1 MiB")
@pytest.mark.parametrize("of", [torch.cuda, torch.accelerator])
def test_it(of):
    torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    of.reset_peak_memory_stats()
    assert not torch.cuda.max_memory_allocated()  # the test's own view

@pytest.mark.limit_gpu_memory("1 MiB")
def test_next():
    torch.empty(1 << 19, dtype=torch.uint8, device="cuda")
"""
    code, out = suite(*SIMULATED, text=text)
    assert code == 1 and "2 failed, 1 passed" in out, out
    assert out.count("the device held 8 MiB at once, limit 1 MiB") >= 2


def test_a_file_that_is_no_budget_says_so(suite):
    contents = [
        "{", "[]", '{"version": 2}', '{"version": 1}',
        '{"version": 1, "tests": {"test_small": {"peak": "1 MiB",'
        ' "layers": {}}}}',
        '{"version": 1, "tolerance": "much", "tests": {}}']
    files = []
    for number, content in enumerate(contents):  # a module each, in one run
        (suite.folder / f"test_{number}.py").write_text(MODULE)
        files.append(suite.folder / f"test_{number}.budget.json")
        files[-1].write_text(content)
    code, text = suite(*SIMULATED, "-k", "small")
    assert code == 1 and "1 passed, 21 deselected" in text
    for file, content in zip(files, contents):
        assert file.name in text and file.read_text() == content


def test_without_an_option_nothing_is_asked_of_us(suite):
    text = """
import sys
def test_untouched():
    # What `import torch` asks for, by the other entry point, and the plug-in.
    assert {name for name in sys.modules if name.startswith("stratalloc.")} == {
        "stratalloc._autoload", "stratalloc.pytest_plugin"}
    assert sys.modules["torch"].cuda.memory.get_allocator_backend() == "native"
"""
    code, out = suite(text=text)
    assert code == 0, out


@pytest.mark.parametrize("options, said", [
    (("--stratalloc-card", "a100"), "give --stratalloc-simulate SIZE"),
    (("--stratalloc-simulate", "64XB"), "unknown unit 'XB'"),
    ((*SIMULATED, "--stratalloc-card", "b52"), "b52"),
    ((*SIMULATED, "--stratalloc-leaks-above", "few"), "not a size"),
    (("--stratalloc-leaks",), "give --stratalloc or"),
    (("--stratalloc-update-budgets",), "give --stratalloc or"),
    ((*SIMULATED, "-p", "early"), "torch is"),
])
def test_options_that_cannot_be(suite, options, said):
    code, text = suite(*options)
    assert code == 4 and said in text, text
    assert "Traceback" not in text


def test_option_without_gpu_is_a_usage_error(suite, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, text = suite("--stratalloc")
    assert code == 4 and "--stratalloc: there is no GPU: " in text, text
    assert "--stratalloc-simulate SIZE" in text and "passed" not in text


def test_limit_under_another_allocator_fails(suite):
    (suite.folder / "conftest.py").write_text("""
from torch.cuda import memory
memory.change_current_allocator(
    memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free"))
""")
    code, text = suite(*SIMULATED, text="""
import pytest, torch

@pytest.mark.limit_gpu_memory("1 MiB")
def test_limited():
    torch.empty(4 << 20, device="cuda")

def test_other():
    pass
""")
    assert code == 1 and "1 failed, 1 passed" in text, text
    assert "another CUDA allocator took its place" in text, text


@pytest.mark.parametrize("options", [("--stratalloc",), SIMULATED])
def test_stratalloc_0_with_an_option_is_a_usage_error(options, suite,
                                                      monkeypatch):
    monkeypatch.setenv("STRATALLOC", "0")
    code, text = suite(*options)
    assert code == 4 and "STRATALLOC=0 in the environment" in text, text
    assert "passed" not in text


def test_a_mark_that_is_no_size(suite):
    marks = ["", "'2 XB'", "1, 2", "None", "size=3"]
    text = "import pytest, torch\n" + "".join(
        f"@pytest.mark.limit_gpu_memory({mark})\n"
        f"def test_{number}(): torch.ones(3, device='cuda')\n"
        for number, mark in enumerate(marks))
    code, out = suite(*SIMULATED, text=text)
    assert code == 1 and out.count("limit_gpu_memory(") >= len(marks), out
    for number in range(len(marks)):
        assert f"::test_{number}" in out and " passed" not in out, out
    assert "During handling" not in out


def test_a_test_that_fails_fails_as_itself(suite):
    text = ("import pytest, torch\n"
            "@pytest.mark.limit_gpu_memory('1 KiB')\n"
            "def test_it():\n"
            "    kept = torch.ones(9999, device='cuda')\n"
            "    assert kept.sum() == 1\n")
    code, out = suite(*SIMULATED, "--stratalloc-leaks", text=text)
    assert code == 1 and "AssertionError" in out
    assert "at once" not in out and "behind" not in out


def test_the_card_and_a_model_of_real_size(suite):
    text = ("import torch\n"
            "def test_it():\n"
            "    assert torch.cuda.get_device_properties(0).total_memory"
            " > 20 << 30\n"
            "    torch.nn.Linear(40000, 40000, device='cuda')\n")
    code, out = suite("--stratalloc-simulate", "card", "--stratalloc-card",
                      "rtx4090", "--stratalloc-numbers", "off", text=text)
    assert code == 0, out
