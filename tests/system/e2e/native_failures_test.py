# SPDX-License-Identifier: Apache-2.0
"""Open issues of PyTorch's own allocator: reproduced with it, gone with ours.

One test per issue. The native half proves that the program still shows what the
issue says; from the minor in MENDED on it expects of PyTorch what it expects of
ours. Always on the simulated device: the programs need work that ends late and memory that is short
to the byte. Issue 140687 is in ways_in_test.py.
"""

import json
import re

import pytest

from tests.system.e2e import running

pytestmark = pytest.mark.skipif(
    not running.SIMULATED, reason="steers the simulated device's streams")

MIB = 1 << 20
HINT = "expandable_segments:True"
OOM = "OutOfMemoryError: CUDA out of memory. Tried to allocate "
# Tiering or not, the promises are the same.
OURS = ("tiering:off", "")
# Program -> the minor of torch that no longer fails it.
MENDED = {
    "grow_in_a_pool_beside_a_cache": 13,
    "frees_wait_in_a_pool": 13,
    "empty_cache_in_a_pool": 13,
    "text_of_oom": 14,
}


def _fails(program):
    """PyTorch's own allocator fails it in the torch under test."""
    return running.TORCH_MINOR < MENDED.get(program, 1000)


def _run(way, *programs, conf="", torch_conf=""):
    done = running.python(
        running.program("native_failures.py"), way, *programs,
        STRATALLOC_CONF=conf, PYTORCH_CUDA_ALLOC_CONF=torch_conf)
    saw = running.last_json(done)
    assert saw["enabled"] == (way == "ours")
    if way == "ours":
        assert saw["violations"] == 0, done.stderr
    return saw


def _native(*programs, **more):
    return _run("native", *programs, **more)


def _ours(*programs, **more):
    return [_run("ours", *programs, conf=conf, **more) for conf in OURS]


def test_issue_189504():
    """Out of memory while a block that fits is about to be free: after the wait
    native searches the driver again, and not its own pool.

    https://github.com/pytorch/pytorch/issues/189504
    """
    program = "oom_beside_a_pending_free"
    native = _native(program)[program]
    assert native["error"].startswith(OOM + "24.00 MiB")
    assert native["error_again"] == ""  # nothing had changed but the search
    for saw in _ours(program):
        assert saw[program] == {"error": "", "error_again": "", "kept": 2.0}


def test_issue_159674():
    """Out of memory in use_mem_pool: native releases no cached memory of the
    pool, and none of other pools before torch 2.13.

    https://github.com/pytorch/pytorch/issues/159674
    """
    programs = {
        "grow_in_a_pool": "48.00 MiB",
        "grow_in_a_pool_beside_a_cache": "48.00 MiB",
        "fragments_in_a_pool": "24.00 MiB",
        "small_blocks_in_a_pool": "48.00 MiB",
        "another_streams_cache_in_a_pool": "48.00 MiB",
    }
    native = _native(*programs)
    ours = _ours(*programs)
    for program, size in programs.items():
        served = ours
        if _fails(program):
            assert native[program]["error"].startswith(OOM + size), program
        else:
            served = [native, *ours]
        for saw in served:
            assert saw[program] == {"error": "", "mean": 3.0}, program


def test_issue_175015():
    """A MemPool inherits the rules of captures before torch 2.13: native lets
    blocks that other streams used wait for the pool's end, and empty_cache does
    nothing.

    https://github.com/pytorch/pytorch/issues/175015
    """
    frees, empties = "frees_wait_in_a_pool", "empty_cache_in_a_pool"
    native = _native(frees, empties)
    freed = _ours(frees, empties)
    emptied = list(freed)
    if _fails(frees):
        assert native[frees] == {"reused": False, "active": 2 * MIB}
    else:
        freed.append(native)
    if _fails(empties):
        assert native[empties]["reserved"] >= 32 * MIB
    else:
        emptied.append(native)
    for saw in freed:
        assert saw[frees] == {"reused": True, "active": MIB}
    for saw in emptied:
        assert saw[empties]["reserved"] == 0


def test_issue_159594():
    """During a capture native frees memory of the driver, with max_split_size
    set, and so spoils the capture. Ours frees none; what does not fit is a
    clean out of memory, and the capture goes on.

    https://github.com/pytorch/pytorch/issues/159594
    """
    settings = {"torch_conf": "max_split_size_mb:20"}
    fits, does_not = "no_driver_free_in_a_capture", "oom_in_a_capture"
    for program in (fits, does_not):
        native = _native(program, **settings)[program]
        assert native["returned"] > 0
        assert "cudaErrorStreamCaptureInvalidated" in native["capture"]
    for saw in _ours(fits, does_not, **settings):
        assert saw[fits] == {
            "returned": 0, "inside": "", "capture": "", "out": 7.0}
        assert saw[does_not].pop("inside").startswith(OOM + "80.00 MiB")
        assert saw[does_not] == {"returned": 0, "capture": "", "out": 5.0}


def test_issue_173049():
    """The text of an out of memory advises to set what is set already, before
    torch 2.14.

    Ours never does: every segment of it can grow, whatever the setting.
    https://github.com/pytorch/pytorch/issues/173049
    """
    program, settings = "text_of_oom", {"torch_conf": HINT}
    native = _native(program, **settings)[program]["error"]
    assert native.startswith(OOM + "80.00 MiB")
    assert (HINT in native) == _fails(program)
    begin, _, sums = native.partition(" Of the allocated memory ")
    assert "is allocated by PyTorch" in sums
    cause = re.compile(r" The tensor is larger than the card: .* No setting "
                       r"helps\.")
    set_off, set_on = _ours(program, **settings)
    unset_off, unset_on = _ours(program)
    for saw in (set_off, unset_off, set_on, unset_on):
        error = saw[program]["error"]
        assert error.startswith(begin) and HINT not in error
        assert cause.fullmatch(error.removeprefix(begin)), error
