# SPDX-License-Identifier: Apache-2.0
"""Bad input: each mistake is named, and the program stays in one piece."""

import pytest

from tests.system.e2e import running

def _python(tmp_path, text, **settings):
    path = tmp_path / "script.py"
    path.write_text(text)
    return running.python(path, **settings)


_ENABLE = running.LOAD + """
import torch, stratalloc
try:
    stratalloc.enable()
except ValueError as error:
    print("ValueError:", error)
print(torch.cuda.memory.get_allocator_backend(), stratalloc.is_enabled())
torch.ones(3, device="cuda")
"""


@pytest.mark.parametrize("conf,words", [
    ("host_budjet:32MiB", ("host_budjet", "32MiB", "host_budget")),
    ("host_budget:lots", ("host_budget", "lots")),
    ("tiering", ("tiering",)),
])
def test_bad_conf_raises_from_enable(tmp_path, conf, words):
    text = running.must_work(_python(tmp_path, _ENABLE, STRATALLOC_CONF=conf))
    assert text.startswith("ValueError:") and text.endswith("native False\n")
    for word in words:
        assert word in text


_IMPORT = running.LOAD + """
import torch, stratalloc
print("enabled", stratalloc.is_enabled())
print(torch.ones(3, device="cuda").sum().item())
"""


def test_bad_conf_in_the_environment_is_one_line(tmp_path):
    done = _python(tmp_path, _IMPORT, STRATALLOC="1",
                   STRATALLOC_CONF="telemetry:loud")
    assert running.must_work(done) == "enabled False\n3.0\n"
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "telemetry" in lines[0] and "loud" in lines[0]
    assert "native allocator stays" in lines[0]


def test_strict_raises(tmp_path):
    done = _python(tmp_path, _IMPORT, STRATALLOC="1", STRATALLOC_STRICT="1",
                   STRATALLOC_CONF="telemetry:loud")
    assert done.returncode == 1 and "telemetry" in done.stderr


def test_off_by_default(tmp_path):
    for value in ({}, {"STRATALLOC": "0"}):
        done = _python(tmp_path, _IMPORT, STRATALLOC_CONF="bad:x", **value)
        assert running.must_work(done) == "enabled False\n3.0\n"
        assert done.stderr == ""


def test_enabled_by_the_environment(tmp_path):
    done = _python(tmp_path, _IMPORT, STRATALLOC="1")
    assert running.must_work(done) == "enabled True\n3.0\n"
    assert done.stderr == ""


def test_too_late(tmp_path):
    done = _python(tmp_path, running.LOAD + """
import torch, stratalloc
kept = torch.ones(3, device="cuda")
for way in (stratalloc.enable, stratalloc.allocator):
    try:
        way()
    except RuntimeError as error:
        print(error)
print(kept.sum().item(), stratalloc.is_enabled())
""")
    text = running.must_work(done)
    assert text.count("already initialised") == 2
    assert "script.py:7" in text and "move" in text
    assert text.endswith("3.0 False\n")


_UNSUPPORTED = running.LOAD + """
import torch, stratalloc
torch.__version__ = "2.99.1+cu130"
for way in (stratalloc.enable, stratalloc.allocator, stratalloc.library):
    try:
        way()
    except stratalloc.UnsupportedTorchError as error:
        print(error)
print("enabled", stratalloc.is_enabled())
print(torch.ones(3, device="cuda").sum().item())
"""


def test_enable_on_unsupported_torch_raises(tmp_path):
    done = _python(tmp_path, _UNSUPPORTED)
    *said, enabled, total = running.must_work(done).splitlines()
    assert (enabled, total, done.stderr) == ("enabled False", "3.0", "")
    assert len(said) == 3 and len(set(said)) == 1, said
    assert "2.99.1" in said[0]
    assert f"has those of torch 2.{running.TORCH_MINOR}:" in said[0]


# What `import torch` calls, in an installation without this torch's bridge.
_AUTOLOAD = running.LOAD + """
import os
import torch, stratalloc
from stratalloc import _autoload
from stratalloc._native import bridge as _bridge
_bridge.supported = lambda: ["2.7"]
os.environ["STRATALLOC"] = "1"
_autoload.autoload()
print("enabled", stratalloc.is_enabled())
"""


def test_environment_on_unsupported_torch_is_one_line(tmp_path):
    done = _python(tmp_path, _AUTOLOAD)
    assert running.must_work(done) == "enabled False\n"
    line, = done.stderr.splitlines()
    assert "torch 2.7" in line and line.endswith("native allocator stays")
    done = _python(tmp_path, _AUTOLOAD, STRATALLOC_STRICT="1")
    assert done.returncode == 1 and "UnsupportedTorchError" in done.stderr


_FILL = """
import sys
import torch, stratalloc
kept = []
try:
    for number in range(40):
        kept.append(torch.full((1 << 20,), float(number), device="cuda"))
except torch.OutOfMemoryError as error:
    print(error)
print("blocks", len(kept))
# Device and host are full; what is away still comes back, by swapping.
for number, block in enumerate(kept):
    assert block[-1].item() == number and block.sum().item() == number << 20
"""


def _run(tmp_path, text, conf):
    path = tmp_path / "script.py"
    path.write_text(text)
    return running.on_device("32MiB", path, conf=conf)


def test_host_budget_spent_and_no_disk(tmp_path):
    text = running.must_work(_run(tmp_path, _FILL,
                                  "host_budget:16MiB,disk_budget:0"))
    assert "CUDA out of memory. Tried to allocate 4.00 MiB" in text
    assert "host" in text and "disk" in text
    blocks = int(text.split("blocks ")[1])
    assert 32 // 4 <= blocks <= (32 + 16) // 4, text


def test_with_disk_it_all_fits(tmp_path):
    text = running.must_work(_run(
        tmp_path, _FILL, "host_budget:16MiB,disk_budget:256MiB"))
    assert text == "blocks 40\n"


def test_failing_disk_is_said_once_and_memory_goes_on(tmp_path):
    done = _run(tmp_path, _FILL.replace(
        # Every write behind the first page of a file is refused.
        "kept = []", "import resource\ntorch.cuda.init()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "kept = []").replace(
            # With a disk allowed no part of the host budget is kept back to
            # swap through; the program makes that room itself.
            "# Device and host", "kept.pop()\n# Device and host"),
        "host_budget:16MiB,disk_budget:256MiB")
    text = running.must_work(done)
    assert "CUDA out of memory" in text
    lines = [line for line in done.stderr.splitlines() if "disk" in line]
    # One line per reason, not one per block that cannot leave.
    assert 1 <= len(lines) <= 3 and len(set(lines)) == len(lines), done.stderr


def test_unknown_pointer_and_double_free(tmp_path):
    done = _run(tmp_path, """
import torch, stratalloc
def refused(pointer):
    try:
        torch.cuda.caching_allocator_delete(pointer)
    except RuntimeError as error:
        return "invalid device pointer" in str(error)
layer = torch.nn.Linear(64, 64, device="cuda")
pointer = layer.weight.data_ptr()
assert refused(0x1234000)
with torch.no_grad():
    expected = layer.bias.sum().item()
del layer.weight
assert refused(pointer)
assert layer.bias.sum().item() == expected
""", "")
    running.must_work(done)
    assert "0x1234000" in done.stderr
    report = [line for line in done.stderr.splitlines() if "Linear" in line]
    assert report, done.stderr


def test_simulating_after_torch_is_refused(tmp_path):
    done = _python(tmp_path, """
import torch
from stratalloc import simulate
try:
    simulate.load()
except RuntimeError as error:
    print(error)
""", fresh=True)
    assert "already imported" in running.must_work(done)
