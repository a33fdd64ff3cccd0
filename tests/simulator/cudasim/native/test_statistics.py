# SPDX-License-Identifier: Apache-2.0
"""The native allocator's numbers, limits and questions to the driver."""

import gc

import pytest

from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB,128MiB", devices=2)

import torch  # pylint: disable=wrong-import-position

MIB = 1 << 20
OURS = simulated.allocator() == "stratalloc"


def make(mib, where="cuda"):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=where)


@pytest.fixture(autouse=True)
def clean():
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    yield
    gc.collect()
    torch.cuda.empty_cache()
    assert device.used() == 0 and device.used(1) == 0
    assert device.violations() == []


def test_peaks():
    x = make(40)
    del x
    torch.cuda.empty_cache()
    y = make(24)
    assert torch.cuda.max_memory_allocated() == 40 * MIB
    assert torch.cuda.memory_allocated() == 24 * MIB
    assert torch.cuda.max_memory_reserved() == 40 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 24 * MIB
    assert torch.cuda.max_memory_reserved() == 24 * MIB
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == 64 * MIB
    assert stats["allocated_bytes.all.freed"] == 40 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == 0
    assert stats["num_alloc_retries"] == 0 and stats["num_ooms"] == 0
    del y


def test_retries_and_out_of_memory_are_counted():
    x = make(200)
    del x
    # Only after the cached 200 went back: a retry. Ours maps them again.
    retries = {"native": 1, "stratalloc": 0}[simulated.allocator()]
    y = make(240)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries
    with pytest.raises(torch.OutOfMemoryError):
        make(150)
    stats = torch.cuda.memory_stats()
    assert stats["num_ooms"] == 1
    assert stats["num_alloc_retries"] == retries + 1
    del y


def test_memory_info():
    free, total = torch.cuda.mem_get_info()
    assert total == 256 * MIB and free == 256 * MIB
    x = make(64)
    assert torch.cuda.mem_get_info() == (192 * MIB, 256 * MIB)
    del x
    assert torch.cuda.mem_get_info()[0] == 192 * MIB  # cached
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == 256 * MIB
    assert torch.cuda.mem_get_info(1) == (128 * MIB, 128 * MIB)
    assert torch.cuda.get_device_properties(1).total_memory == 128 * MIB


def test_fraction():
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        x = make(100)
        with pytest.raises(torch.OutOfMemoryError) as error:
            make(40)
        said = "allows 128.00 MiB of the card" if OURS else "128.00 MiB allowed"
        assert said in str(error.value)
        assert device.used() <= 128 * MIB
        del x
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    x = make(140)
    del x


def test_devices_are_counted_apart():
    x = make(16, "cuda:1")
    assert torch.cuda.memory_allocated(0) == 0
    assert torch.cuda.memory_allocated(1) == 16 * MIB
    assert device.used(1) == torch.cuda.memory_reserved(1)
    with pytest.raises(torch.OutOfMemoryError, match="GPU 1"):
        make(200, "cuda:1")
    del x


def test_accelerator():
    x = make(20)
    accelerator = torch.accelerator
    assert accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert accelerator.max_memory_allocated() == 20 * MIB
    assert accelerator.memory_stats()["allocated_bytes.all.current"] == 20 * MIB
    assert accelerator.get_memory_info(0) == torch.cuda.mem_get_info(0)
    del x
    accelerator.empty_cache()
    assert accelerator.memory_reserved() == 0
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == 0
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.memory_stats()["allocated_bytes.all.freed"] == 0


def test_host_memory_statistics():
    pinned = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    stats = torch.cuda.host_memory_stats()
    assert stats["allocated_bytes.current"] >= 3 * MIB
    assert pinned.is_pinned()
    del pinned
    torch._C._host_emptyCache()


def test_what_needs_nvml_says_so():
    # There is no libnvidia-ml: the questions that need it name it, the memory
    # question falls back on nothing else.
    for question in (
        torch.cuda.utilization, torch.cuda.temperature,
        torch.cuda.power_draw, torch.cuda.clock_rate,
        torch.cuda.device_memory_used,
    ):
        with pytest.raises(ModuleNotFoundError, match="nvidia-ml-py"):
            question()
    assert "nvidia-ml-py" in torch.cuda.list_gpu_processes()
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2


def test_raw_allocations():
    pointer = torch.cuda.caching_allocator_alloc(5 * MIB)
    assert torch.cuda.memory_allocated() == 5 * MIB
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.get_allocator_backend() == "native"


def test_caching_can_be_switched_off():
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        x = make(10)
        assert device.used() >= 10 * MIB
        del x
        gc.collect()
        assert device.used() == 0  # straight back to the device
    finally:
        torch.cuda.memory.caching_allocator_enable(True)
