# SPDX-License-Identifier: Apache-2.0
"""Every way in, each in its own process, against torch's own allocator.

The functions of torch.cuda are called unpatched. Counts and bytes of blocks
must equal native's exactly at every step; bytes reserved and segments may
differ, because the layouts do.
"""

import json
import re

import pytest

from tests.system.e2e import running

# Keys of memory_stats that depend on how segments are laid out.
_LAYOUT = re.compile(r"^(segment|reserved_bytes|inactive_split|"
                     r"inactive_split_bytes|num_(device_(alloc|free)|"
                     r"sync_all_streams|alloc_retries)|max_split_size|"
                     r"oversize_segments)")


def _steps(tmp_path, way):
    out = tmp_path / f"{way}.json"
    path = running.program("ways_in.py")
    if way == "run":
        done = running.on_device("64MiB", path, way, out)
    elif way == "environment":
        done = running.python(path, way, out, STRATALLOC="1")
    else:
        done = running.python(path, way, out)
    running.must_work(done)
    if way == "run" and running.SIMULATED:
        last = done.stderr.strip().splitlines()[-1]
        assert "0 launches without a twin, 0 refused calls, 0 viol" in last
    return json.loads(out.read_text())


@pytest.fixture(name="native", scope="module")
def _native(tmp_path_factory):
    return _steps(tmp_path_factory.mktemp("native"), "native")


@pytest.mark.parametrize("way", ["enable", "change_current_allocator",
                                 "literal", "environment", "run"])
def test_way(tmp_path, native, way):
    ours = _steps(tmp_path, way)
    running.clean_device(ours["counters"])
    assert len(ours["steps"]) == len(native["steps"])
    for mine, theirs in zip(ours["steps"], native["steps"]):
        step = theirs["step"]
        assert mine["allocated"] == theirs["allocated"], step
        assert mine["max_allocated"] == theirs["max_allocated"], step
        assert mine["stats"].keys() == theirs["stats"].keys()
        different = {
            key: (mine["stats"][key], value)
            for key, value in theirs["stats"].items()
            if not _LAYOUT.match(key) and mine["stats"][key] != value}
        assert not different, (step, different)
        assert mine["allocated"] <= mine["reserved"]
        if running.SIMULATED:  # a real card has more
            assert mine["reserved"] <= 64 << 20
        assert mine["max_reserved"] >= mine["reserved"]
        if "accelerator" in mine:
            assert mine["accelerator"] == mine["allocated"]
        if "refusal" in mine:
            assert mine["refusal"].startswith(
                "CUDA out of memory. Tried to allocate 40.00 MiB")
    assert ours["report"]["layers"] is not None


def test_issue_140687():
    """Swapped too late: one message with the line that initialised CUDA.

    Native says "Can't swap an already initialized allocator" and no more:
    https://github.com/pytorch/pytorch/issues/140687
    """
    done = running.python("-c", running.LOAD + """
import torch, stratalloc
from stratalloc import _autoload; _autoload.autoload()  # torch calls it

def somewhere_else():
    torch.zeros(1, device="cuda")

somewhere_else()
for way in (stratalloc.enable, stratalloc.allocator, stratalloc.library):
    try:
        way()
    except RuntimeError as error:
        print(error)
    else:
        raise SystemExit(way.__name__ + " came too late and was not refused")
assert not stratalloc.is_enabled()
assert torch.cuda.memory.get_allocator_backend() == "native"
assert torch.ones(3, device="cuda").sum().item() == 3
""")
    lines = running.must_work(done).strip().splitlines()
    assert len(lines) == 3, lines
    for line in lines:
        assert ("CUDA is already initialised, by <string>:7 "
                "(in somewhere_else)") in line
        assert "the call of stratalloc at <string>:" in line
        assert "STRATALLOC=1" in line and "stratalloc run" in line
