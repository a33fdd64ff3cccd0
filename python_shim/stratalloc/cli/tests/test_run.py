# SPDX-License-Identifier: Apache-2.0
"""`stratalloc run` with torch: no GPU, a simulated one, and its children."""

import json
import os

import pytest

from bazel import programs


def _run(folder, *options, text, **more):
    path = folder / "script.py"
    path.write_text(text)
    return programs.run("-m", "stratalloc", "run", *options, path,
                        env={**os.environ, **more})


def test_without_a_gpu_the_program_does_not_start(tmp_path):
    done = _run(tmp_path, text="print('started')",
                CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert "no GPU for" in line and "script.py" in line
    assert "--simulate" in line


@pytest.mark.parametrize("command", [("run",), ("estimate", "--card", "t4")])
def test_missing_script_is_named_as_the_usage_names_it(command):
    done = programs.run("-m", "stratalloc", *command, env=os.environ)
    assert done.returncode == 2
    usage, error = done.stderr.rsplit("error: ", 1)
    assert error == ("the following arguments are required: script.py or "
                     "module\n")
    assert "script.py" in usage and "args" not in error


def test_a_failing_program_is_told_as_python_tells_it(tmp_path):
    """Between the two lines of the simulated device nothing is ours."""
    done = _run(tmp_path, "--simulate", "64MiB",
                text="import torch\ntorch.ones(3, device='cuda')\n[][1]\n")
    assert done.returncode == 1
    first, *report, last = done.stderr.splitlines()
    assert first.startswith("stratalloc: simulated CUDA: 1 device")
    assert last == ("stratalloc: simulated: 1 operator, 0 launches without a "
                    "twin, 0 refused calls, 0 violations")
    assert report[0] == "Traceback (most recent call last):"
    assert f'{tmp_path / "script.py"}", line 3, in <module>' in report[1]
    assert report[-1] == "IndexError: list index out of range"


@pytest.mark.long
def test_compiled_kernel_on_a_simulated_device_names_the_cure(tmp_path):
    program = """
import sys, torch
model = torch.compile(torch.nn.GELU(), backend=sys.argv[1])
print(model(torch.zeros(8, device="cuda")).sum().item())
"""
    path = tmp_path / "compiled.py"
    path.write_text(program)
    command = ["-m", "stratalloc", "run", "--simulate", "64MiB", path]
    done = programs.run(*command, "inductor")
    last = next(line for line in done.stderr.splitlines()
                if line.startswith("RuntimeError: "))
    assert done.returncode == 1 and "cannot run compiled kernels" in last, last
    for word in ("triton_poi_fused_gelu_0", 'torch.compile with backend="eager"',
                 '"aot_eager" or "cudagraphs"',
                 "CUDASIM_CHECK_RAW_LAUNCHES=all"):
        assert word in last, last
    done = programs.run(*command, "aot_eager")
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr


_HOLDS = """
import sys, torch, stratalloc
kept = []
for i in range(40):
    with stratalloc.scope(f"part{i}.deep", category="buffer"):
        kept.append(torch.ones((i + 1) << 10, device="cuda"))
how = sys.argv[1] if len(sys.argv) > 1 else ""
if how == "error":
    [][1]
elif how == "memory":
    torch.empty(1 << 30, device="cuda")
elif how:
    sys.exit(int(how))
"""


@pytest.mark.parametrize("how, code, before", [
    ("", 0, None), ("7", 7, None), ("error", 1, "IndexError"),
    ("memory", 1, "torch.OutOfMemoryError")])
def test_the_report_is_told_however_the_program_ends(how, code, before,
                                                     tmp_path):
    text = _HOLDS.replace("sys.argv[1]", repr(how)).replace(
        "len(sys.argv) > 1", str(bool(how)))
    done = _run(tmp_path, "--report", "--simulate", "64MiB", text=text,
                COLUMNS="90", LINES="20")
    assert done.returncode == code and done.stdout == ""
    lines = done.stderr.splitlines()
    at = lines.index(next(line for line in lines if line.startswith(
        "device 0 at its peak")))
    assert before is None or any(before in line for line in lines[:at])
    # 40 parts of 4 KiB to 160 KiB: 820 of 4 KiB.
    assert lines[at + 1].split()[:3] == ["total", "3.20", "MiB"]
    assert lines[at + 2].split()[:3] == ["part39.deep", "160", "KiB"]
    assert lines[-2].startswith("and 26 smaller, ") and lines[-2].endswith(
        "; --all or --depth N has them")
    assert len(lines) - 1 - at == 1 + 20 - 4
    assert lines[-1].startswith("stratalloc: simulated: ")


def test_the_report_is_as_long_as_asked_and_json_is_of_integers(tmp_path):
    found = {}
    for options in (("--all",), ("--depth", "0"), ()):
        done = _run(tmp_path, "--report", *options, "--json", "-",
                    "--simulate", "64MiB", text=_HOLDS)
        assert done.returncode == 0, done.stderr
        found[options] = sum("part" in line
                             for line in done.stderr.splitlines())
        rows = json.loads(done.stdout)["devices"][0]["layers"]
        assert {type(row["at_peak"]) for row in rows} == {int}
        assert sum(row["at_peak"] for row in rows) == 820 * 4096
    assert found[("--all",)] == 40 and found[("--depth", "0")] == 0
    assert 0 < found[()] < 40


def test_the_report_of_a_program_that_holds_nothing(tmp_path):
    done = _run(tmp_path, "--report", "--simulate", "64MiB", text="import torch")
    assert done.returncode == 0
    assert ("stratalloc: --report: the program held no memory of a GPU"
            in done.stderr.splitlines())


_THREADS = """
import concurrent.futures, sys, threading, torch
ended = threading.Event()
pool = concurrent.futures.ThreadPoolExecutor(1)  # is not shut down
def late():
    main.join()
    ended.set()
    torch.ones(3, device="cuda").add_(1)
    print("late", file=sys.stderr)
main = threading.main_thread()
threading.Thread(target=late).start()
pool.submit(torch.ones, 3, device="cuda")
"""


@pytest.mark.parametrize("fails", [False, True])
def test_the_result_is_that_of_all_threads(fails, tmp_path):
    """Python waits for them at its end, and for the workers of a pool."""
    result = tmp_path / "result.json"
    done = _run(tmp_path, "--simulate", "64MiB", "--json", result,
                text=_THREADS + ("[][1]\n" if fails else ""))
    assert done.returncode == fails, done.stderr
    assert json.loads(result.read_text())["counters"]["bridged_ops"] >= 2
    *_, late, last = done.stderr.splitlines()
    assert (late, "simulated: 0 operators" in last) == ("late", False)


_SPAWNS = """
import os
import torch
import torch.multiprocessing as mp
import stratalloc

def work(rank, enabled):
    assert torch.cuda.device_count() == 2
    assert stratalloc.is_enabled() == enabled
    value = torch.full((8,), 1.0 + rank, device=f"cuda:{rank}")
    assert value.sum().item() == 8 + 8 * rank
    assert torch.cuda.mem_get_info(rank)[1] == 32 << 20
    if enabled:
        assert stratalloc.config().host_budget == 16 << 20
    open(os.path.join(os.path.dirname(__file__), f"child{rank}"), "w").close()

if __name__ == "__main__":
    mp.START(work, args=(ENABLED,), nprocs=2)
    print("parent", torch.ones(2, device="cuda").sum().item())
"""


def _children(tmp_path, text, *options, **more):
    done = _run(tmp_path, "--simulate", "32MiB", "--devices", "2", "--conf",
                "host_budget:16MiB", *options, text=text, **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "parent 2.0\n"
    assert (tmp_path / "child0").exists() and (tmp_path / "child1").exists()
    # Whoever computed on a simulated device says so.
    assert done.stderr.count(" operators, ") == 3, done.stderr


def test_spawned_children_have_the_device(tmp_path):
    _children(tmp_path, _SPAWNS.replace("START", "spawn").replace(
        "ENABLED", "True"))


@pytest.mark.long
def test_children_have_the_allocator_of_the_run(tmp_path):
    _children(tmp_path, _SPAWNS.replace("START", "spawn").replace(
        "ENABLED", "False"), "--allocator", "native")


def test_children_of_a_fork_server_have_the_device(tmp_path):
    _children(tmp_path, _SPAWNS.replace(
        "mp.START(", "mp.start_processes(").replace(
            "nprocs=2", "nprocs=2, start_method='forkserver'").replace(
                "ENABLED", "True"))


def test_another_sitecustomize_has_its_turn(tmp_path):
    """Of the children's path and of the user's: both are there."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys; sys.theirs = 7\n")
    path = os.pathsep.join([str(theirs), os.environ.get("PYTHONPATH", "")])
    done = _run(tmp_path, "--simulate", "32MiB", text="""
import subprocess, sys
print(subprocess.run(
    [sys.executable, "-c", "import sys, torch; print(sys.theirs, "
     "torch.ones(2, device='cuda').sum().item())"],
    check=True, capture_output=True, text=True).stdout)
""", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "7 2.0\n\n"


def test_a_child_without_the_path_has_the_packages_of_its_parent(tmp_path):
    done = _run(tmp_path, "--simulate", "32MiB", text="""
import os, subprocess, sys
os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].split(os.pathsep)[0]
print(subprocess.run(
    [sys.executable, "-c", "import torch, stratalloc; "
     "print(stratalloc.is_enabled(), torch.ones(2, device='cuda').sum())"],
    check=True, capture_output=True, text=True).stdout)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True tensor(2., device='cuda:0')\n\n"


def test_a_child_that_uses_no_device_says_nothing(tmp_path):
    done = _run(tmp_path, "--simulate", "32MiB", text="""
import subprocess, sys
done = subprocess.run([sys.executable, "-c", "import torch"], check=True,
                      capture_output=True, text=True)
assert (done.stdout, done.stderr) == ("", ""), done
""")
    assert done.returncode == 0, done.stderr
