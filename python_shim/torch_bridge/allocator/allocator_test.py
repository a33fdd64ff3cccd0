# SPDX-License-Identifier: Apache-2.0
"""The allocator object as torch sees it, over a core that records."""

import os

os.environ["PYTORCH_ALLOC_CONF"] = "per_process_memory_fraction:0.5"

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import ctypes

import pytest
import torch

BRIDGE.call("install")


def _empty(count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def test_installed_once_and_known_everywhere():
    BRIDGE.call("install")  # again is fine
    assert BRIDGE.library.stratalloc_torch_is_current() == 1
    major, minor = map(int, torch.__version__.split(".")[:2])
    assert BRIDGE.library.stratalloc_torch_built_for() == 100 * major + minor
    # Torch asserts this name when an option says backend:native.
    assert torch.cuda.get_allocator_backend() == "native"


def test_fraction_of_the_options_is_applied_at_init():
    torch.cuda.init()
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


def test_sees_options_that_change_at_run_time():
    torch._C._accelerator_setAllocatorSettings(
        "per_process_memory_fraction:0.75"
    )
    assert BRIDGE.library.stratalloc_torch_config_fraction() == 0.75


def test_deleter_is_one_bare_function():
    message = ctypes.create_string_buffer(1000)
    for size in (0, 1, 4096):
        assert BRIDGE.library.stratalloc_torch_deleter_is_plain(
            ctypes.c_uint64(size), message, len(message)
        ), message.value


def test_empty_tensor_has_no_block():
    before = torch.cuda.memory_allocated()
    x = _empty(0)
    assert x.data_ptr() == 0 and x.is_cuda
    assert torch.cuda.memory_allocated() == before
    x.record_stream(torch.cuda.Stream())


def test_cache_info():
    largest = ctypes.c_uint64(0)
    BRIDGE.call("cache_info", 0, ctypes.byref(largest))
    assert largest.value == 12345


def test_every_statistic_arrives_in_its_place():
    stats = torch.cuda.memory_stats()
    # The recording core numbers its fields from 1000 in declaration order.
    number = 1000
    for name in (
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ):
        for pool in ("all", "small_pool", "large_pool"):
            for kind in ("current", "peak", "allocated", "freed"):
                key = f"{name}.{pool}.{kind}"
                if key != "allocated_bytes.all.current":
                    assert stats[key] == number, key
                number += 1
    assert stats["num_alloc_retries"] == number
    number += 2
    for name in ("oversize_allocations", "oversize_segments"):
        for kind in ("current", "peak", "allocated", "freed"):
            assert stats[f"{name}.{kind}"] == number
            number += 1
    assert stats["num_sync_all_streams"] == number
    assert stats["num_device_alloc"] == number + 1
    assert stats["num_device_free"] == number + 2
    assert stats["max_split_size"] == -1
    assert "CUDA" in torch.cuda.memory_summary()


def test_accelerator_functions_reach_us():
    x = _empty(1000)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert torch.accelerator.memory_allocated() >= 1000
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    del x


def test_memory_info_is_the_cores():
    assert torch.accelerator.get_memory_info() == (1000, 2000)


def test_snapshot():
    snapshot = torch.cuda.memory._snapshot()
    (segment,) = snapshot["segments"]
    assert segment["address"] == 4096 and segment["total_size"] == 2048
    assert segment["stream"] == 7 and segment["segment_type"] == "small"
    assert [b["state"] for b in segment["blocks"]] == [
        "active_allocated",
        "active_pending_free",
        "inactive",
    ]
    assert [b["requested_size"] for b in segment["blocks"]] == [100, 50, 0]
    assert snapshot["device_traces"] == [[]]
    settings = snapshot["allocator_settings"]
    assert settings["max_split_size"] == -1
    assert settings["pinned_num_register_threads"] == 1
    assert settings["garbage_collection_threshold"] == 0.0
    assert torch.cuda.memory_snapshot(mempool_id=(0, 1)) == []


def test_out_of_memory_is_torchs_own():
    BRIDGE.core.recording_fail_mallocs(1)
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate what"):
        _empty(100)
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB"):
        _empty(1 << 61)


def test_who_is_told_of_a_refusal_ends_its_message():
    BRIDGE.core.recording_clear()
    BRIDGE.core.recording_fail_mallocs(1)
    BRIDGE.say(" Why, and where more is.")
    with pytest.raises(torch.OutOfMemoryError,
                       match="Tried to allocate what.* Why, and where more is"):
        _empty(100)
    assert BRIDGE.told("malloc") == 1
    BRIDGE.say("")


def test_out_of_memory_observers_are_told():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda *what: seen.append(what)
    )
    BRIDGE.core.recording_fail_mallocs(1)
    torch.cuda.set_per_process_memory_fraction(1.0)
    with pytest.raises(torch.OutOfMemoryError):
        _empty(100)
    assert seen == [(0, 100, 2000, 1000)]


def test_profiler_is_told_of_every_block():
    with torch.profiler.profile(profile_memory=True) as profile:
        x = _empty(1 << 20)
        del x
    sizes = [
        event.self_device_memory_usage
        for event in profile.key_averages()
        if event.self_device_memory_usage
    ]
    assert 1 << 20 in sizes


def test_raw_memory():
    ptr = torch.cuda.caching_allocator_alloc(1000)
    assert ptr != 0
    torch.cuda.caching_allocator_delete(ptr)
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(ptr)


def test_record_stream_ignores_memory_that_is_not_ours():
    class Foreign:
        def __init__(self, ptr):
            self.__cuda_array_interface__ = {
                "data": (ptr, False),
                "shape": (4,),
                "typestr": "|u1",
                "version": 3,
            }

    ours = _empty(4)
    before = BRIDGE.core.recording_stream_records()
    view = torch.as_tensor(Foreign(ours.data_ptr()), device="cuda")
    view.record_stream(torch.cuda.Stream())
    assert BRIDGE.core.recording_stream_records() == before
    ours.record_stream(torch.cuda.Stream())
    assert BRIDGE.core.recording_stream_records() == before + 1


def test_gradients_are_announced():
    layer = torch.nn.Linear(4, 4).cuda()
    loss = layer(torch.ones(2, 4, device="cuda")).relu().sum()
    BRIDGE.evictable()
    BRIDGE.core.recording_clear()
    loss.backward()
    hints = BRIDGE.hints()
    BRIDGE.core.recording_clear()
    torch.empty(4, device="cuda")
    # relu's backward is an intermediate, weight's and bias's are gradients.
    assert hints.count(1) >= 1 and hints.count(2) >= 2
    assert BRIDGE.hints() == [0]
    # Where nothing can leave they are charged all the same.
    BRIDGE.evictable(False)
    BRIDGE.core.recording_clear()
    layer(torch.ones(2, 4, device="cuda")).sum().backward()
    assert BRIDGE.hints().count(2) >= 2


def test_what_a_node_makes_beside_a_gradient_is_none():
    first = torch.nn.Linear(4, 8, bias=False).cuda()
    second = torch.nn.Linear(8, 16, bias=False).cuda()
    hints = _backward_hints([second(first(torch.ones(2, 4, device="cuda")))])
    # The gradient of the second layer's input (2, 8) is as autograd's own as
    # that of its result (2, 16): its weight is (16, 8).
    assert hints.count(2) == 2 and hints.count(6) == 1


def _backward_hints(outs):
    loss = sum((out * 3).sum() for out in outs)
    BRIDGE.evictable()
    BRIDGE.core.recording_clear()
    loss.backward()
    hints = BRIDGE.hints()
    BRIDGE.evictable(False)
    BRIDGE.core.recording_clear()
    return hints


def test_gradients_that_wait_for_each_other_are_announced():
    class Copies(torch.autograd.Function):
        """Two copies of each tensor, as DataParallel makes them."""

        @staticmethod
        def forward(ctx, a, b):
            return a * 1, b * 1, a * 1, b * 1

        @staticmethod
        def backward(ctx, a, b, other_a, other_b):
            return a + other_a, b + other_b

    class Halves(torch.autograd.Function):
        """No copies: what arrives is not put into the gradient as it is."""

        @staticmethod
        def forward(ctx, a):
            return a[:2] * 1, a[2:] * 1

        @staticmethod
        def backward(ctx, first, second):
            return torch.cat([first, second])

    a = torch.ones(4, 5, device="cuda", requires_grad=True)
    b = torch.ones(3, device="cuda", requires_grad=True)
    hints = _backward_hints(Copies.apply(a, b))
    assert hints.count(2) >= 6 and 1 not in hints  # four arrive, two result
    hints = _backward_hints(Halves.apply(a))
    assert hints.count(1) == 2 and hints.count(2) >= 1
    # The leaf has to be next: what a layer is given has a layer behind it.
    hints = _backward_hints(Copies.apply(a.exp(), b.exp()))
    assert hints.count(1) >= 4


def test_user_metadata_is_kept():
    torch.cuda.memory._set_memory_metadata("a label")
    assert torch.cuda.memory._get_memory_metadata() == "a label"
