# SPDX-License-Identifier: Apache-2.0
"""What the guard holds for collectives, over a core that records.

The collectives run late, on a stream of their own (late_collectives.cc): as
NCCL's do, whose place they take here.
"""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load(mode="async")

# pylint: disable=wrong-import-position
import contextlib
import ctypes
import gc
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

torch.ops.load_library(os.path.abspath(
    "python_shim/torch_bridge/testing/liblate_collectives.so"))
BRIDGE.call("install_guard")
BRIDGE.call("install")
BRIDGE.call("follow_coalescing")
torch.cuda.init()
GROUP = dist.ProcessGroup.unbox(torch.ops.late_collectives.group())
OURS = torch.ops.stratalloc
CORE = BRIDGE.core

# Never reached by itself: nothing here asks a stream that often.
_STUCK = 1 << 30


@pytest.fixture(autouse=True)
def _clean():
    BRIDGE.evictable()
    CORE.recording_clear()
    yield
    torch.cuda.synchronize()
    CORE.recording_poll()
    assert CORE.recording_pinned() == 0
    assert BRIDGE.open() == 0
    assert DEVICE.violations() == []
    _kept.clear()


@pytest.fixture(name="stuck")
def _stuck():
    """The next copy does not run before somebody synchronises."""
    DEVICE.cuda.cudasim_stick_copy(1, _STUCK)


_kept = []  # to free is to synchronise, in the core of these tests


def _tensors(count):
    made = [torch.full((64,), float(i), device="cuda") for i in range(count)]
    torch.cuda.synchronize()
    _kept.extend(made)
    return made


def _unpinned():
    return CORE.recording_unpinned(0), CORE.recording_unpinned(1)


def _gather(out, tensor, async_op=True):
    options = c10d.AllgatherOptions()
    options.asyncOp = async_op
    return GROUP._allgather_base(out, tensor, options)


def _gather_late(out, tensor):
    DEVICE.cuda.cudasim_stick_copy(1, _STUCK)
    return _gather(out, tensor)


def test_held_until_the_work_is_complete():
    out, tensor = _tensors(2)
    before = _unpinned()
    work = _gather_late(out, tensor)
    CORE.recording_poll()
    assert CORE.recording_pinned() == 2
    torch.cuda.synchronize()
    CORE.recording_poll()
    assert CORE.recording_pinned() == 0
    assert _unpinned() == (before[0] + 2, before[1])
    assert work.is_completed()
    assert torch.equal(out, tensor)


def test_waiting_is_not_completion():
    """wait() makes the current stream wait, not the host."""
    work = _gather_late(*_tensors(2))
    work.wait()
    CORE.recording_poll()
    assert CORE.recording_pinned() == 2


def test_a_work_that_died_says_nothing():
    before = _unpinned()
    work = _gather_late(*_tensors(2))
    work.wait()
    del work
    gc.collect()
    CORE.recording_poll()
    assert CORE.recording_pinned() == 0
    assert _unpinned() == (before[0], before[1] + 2)


def test_the_tensors_of_a_dead_work_go_before_memory_is_taken():
    out, tensor = _tensors(2)
    references = out._use_count()
    work = _gather_late(out, tensor)
    CORE.recording_poll()
    assert out._use_count() == references + 1
    del work
    gc.collect()
    # The core asks these before it takes memory; to destroy a Work may take
    # the GIL, which who chooses victims must not.
    CORE.recording_poll()
    assert out._use_count() == references + 1
    assert CORE.recording_free_memory() == 1
    assert out._use_count() == references
    assert CORE.recording_free_memory() == 0


def test_without_a_work_the_backend_has_waited():
    before = _unpinned()
    assert _gather(*_tensors(2), async_op=False) is None
    assert CORE.recording_pinned() == 0
    assert _unpinned() == (before[0] + 2, before[1])


def test_the_next_collective_lets_go_of_the_last():
    all_of_them = _tensors(6)
    works = [_gather(*all_of_them[:2])]
    torch.cuda.synchronize()
    works.append(_gather_late(*all_of_them[2:4]))
    assert CORE.recording_pinned() == 2
    works.append(_gather(*all_of_them[4:]))  # the oldest is under way
    assert CORE.recording_pinned() == 4
    torch.cuda.synchronize()


def test_written_is_what_is_not_called_input():
    out, tensor = _tensors(2)
    _gather(out, tensor)
    assert BRIDGE.accesses("c10d::_allgather_base_") == [
        (out.data_ptr(), 256, True), (tensor.data_ptr(), 256, False)]
    GROUP.allreduce([tensor])
    assert BRIDGE.accesses("c10d::allreduce_") == [
        (tensor.data_ptr(), 256, True)]


def test_a_coalescing_group_is_held_until_the_work_of_its_end(stuck):
    out, tensor = _tensors(2)
    OURS.coalescing_begins(GROUP.boxed())
    GROUP._start_coalescing(torch.device("cuda"))
    early = _gather(out, tensor)
    # Of its own, which is an event that nobody has recorded.
    assert early.is_completed()
    CORE.recording_poll()
    assert CORE.recording_pinned() == 2
    work = GROUP._end_coalescing(torch.device("cuda"))
    OURS.coalescing_ends(GROUP.boxed(), work.boxed())
    CORE.recording_poll()
    assert CORE.recording_pinned() == 2
    before = _unpinned()
    torch.cuda.synchronize()
    CORE.recording_poll()
    assert _unpinned() == (before[0] + 2, before[1])
    assert torch.equal(out, tensor)


def test_another_group_does_not_coalesce():
    other = dist.ProcessGroup.unbox(torch.ops.late_collectives.group())
    OURS.coalescing_begins(other.boxed())
    work = _gather(*_tensors(2))
    torch.cuda.synchronize()
    assert work.is_completed()
    CORE.recording_poll()
    assert CORE.recording_pinned() == 0
    OURS.coalescing_ends(other.boxed(), None)


def test_a_coalescing_that_ends_without_a_work():
    before = _unpinned()
    OURS.coalescing_begins(GROUP.boxed())
    _gather(*_tensors(2))
    OURS.coalescing_ends(GROUP.boxed(), None)
    assert _unpinned() == (before[0], before[1] + 2)
    OURS.coalescing_ends(GROUP.boxed(), None)  # once more: nothing


def test_a_group_that_dies_while_it_coalesces():
    other = dist.ProcessGroup.unbox(torch.ops.late_collectives.group())
    OURS.coalescing_begins(other.boxed())
    out, tensor = _tensors(2)
    other._allgather_base(out, tensor, c10d.AllgatherOptions())
    CORE.recording_poll()
    assert CORE.recording_pinned() == 2
    before = _unpinned()
    del other
    gc.collect()
    CORE.recording_poll()
    assert _unpinned() == (before[0], before[1] + 2)


def test_a_collective_that_raises_holds_nothing():
    out, tensor = _tensors(2)
    before = _unpinned()
    with pytest.raises(RuntimeError):  # the backend has no such collective
        GROUP.alltoall([out], [tensor], c10d.AllToAllOptions())
    assert CORE.recording_pinned() == 0
    assert _unpinned() == (before[0], before[1] + 2)


def test_functional_collectives_are_those_of_c10d():
    import torch.distributed._functional_collectives as functional

    c10d._register_process_group("late", GROUP)
    tensor, = _tensors(1)
    DEVICE.cuda.cudasim_stick_copy(1, _STUCK)
    gathered = functional.all_gather_tensor(tensor, 0, GROUP)
    CORE.recording_poll()
    assert CORE.recording_pinned() == 2
    assert torch.equal(functional.wait_tensor(gathered), tensor)
    torch.cuda.synchronize()
    CORE.recording_poll()
    assert CORE.recording_pinned() == 0


def test_an_operator_that_names_a_group_and_has_no_work():
    """As those of symm_mem and of serving engines: who knows where it runs."""
    with torch.library._scoped_library("collectives_test", "DEF") as library:
        library.define("reduce(Tensor x, str group_name) -> Tensor")
        library.impl("reduce", lambda x, group_name: x + 1, "CUDA")
        tensor, = _tensors(1)
        before = _unpinned()
        result = torch.ops.collectives_test.reduce(tensor, "group")
        assert result.tolist() == [1.0] * 64
        # The operand and what was made of it.
        assert _unpinned() == (before[0], before[1] + 2)


@contextlib.contextmanager
def _capturing():
    """A stream that captures, in the mode that most calls spoil."""
    stream, graph = torch.cuda.Stream(), ctypes.c_void_p()
    handle = ctypes.c_void_p(stream.cuda_stream)
    with torch.cuda.stream(stream):
        assert DEVICE.cuda.cuStreamBeginCapture_v2(handle, 0) == 0
        try:
            yield
        finally:
            ended = DEVICE.cuda.cuStreamEndCapture(handle, ctypes.byref(graph))
        assert ended == 0
    DEVICE.cuda.cuGraphDestroy(graph)


def test_in_a_capture_nothing_is_held():
    """The graph keeps its operands, and a captured event must not be asked."""
    out, tensor = _tensors(2)
    before = _unpinned()
    with _capturing():
        _gather(out, tensor).wait()
        assert CORE.recording_pinned() == 0
    assert _unpinned() == before


def test_asking_does_not_spoil_the_capture_of_another_stream():
    tensors, other = _tensors(2), torch.cuda.Stream()
    with _capturing():
        with torch.cuda.stream(other):
            work = _gather_late(*tensors)
        CORE.recording_poll()
        assert CORE.recording_pinned() == 2
    torch.cuda.synchronize()
    assert work.is_completed()


def test_other_operators_are_as_before():
    before = _unpinned()
    torch.ones(4, device="cuda").add_(1)
    assert CORE.recording_pinned() == 0
    assert _unpinned() == before
