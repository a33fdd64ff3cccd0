# SPDX-License-Identifier: Apache-2.0
"""The native allocator's settings do on the simulated device what they say.

Those read once, at the first allocation, get a process of their own.
"""

import gc
import os
import subprocess
import sys
import textwrap

import pytest

from tests.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB")

import torch  # pylint: disable=wrong-import-position

MIB = 1 << 20
START = """
import gc, sys
from tests.cudasim.operator_bridge import simulated
device = simulated.load(memory="256MiB")
import torch
MIB = 1 << 20
def make(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
"""


def make(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def child(script, **environment):
    """Runs it after loading the device; returns exit status and output."""
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(script)],
        env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture
def setting():
    yield torch._C._accelerator_setAllocatorSettings
    torch._C._accelerator_setAllocatorSettings(
        "max_split_size_mb:1000000,garbage_collection_threshold:0.999,"
        "roundup_power2_divisions:1"
    )
    gc.collect()
    torch.cuda.empty_cache()
    assert device.used() == 0


def test_max_split_size(setting):
    x = make(100)
    del x
    y = make(40)
    assert device.used() == 100 * MIB  # cut from the 100
    del y
    torch.cuda.empty_cache()
    setting("max_split_size_mb:30")
    x = make(100)
    del x
    y = make(40)
    assert device.used() == 140 * MIB  # the 100 may not be cut
    del y


def test_roundup_power2_divisions(setting):
    setting("roundup_power2_divisions:4")
    x = torch.empty(MIB + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == MIB + MIB // 4
    del x
    x = torch.empty(5 * MIB + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 6 * MIB
    del x


def test_garbage_collection(setting):
    setting("garbage_collection_threshold:0.5")
    torch.cuda.set_per_process_memory_fraction(0.99)  # 1 would be no limit
    for mib in (30, 50, 70):
        x = make(mib)
        del x
    # 150 of 256 MiB are cached, more than half: the oldest go first.
    x = make(90)
    assert device.used() == 160 * MIB
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
    del x


def test_bad_settings_are_refused(setting):
    for text in ("max_split_size_mb:1", "garbage_collection_threshold:2",
                 "no_such_setting:1"):
        with pytest.raises(ValueError):
            setting(text)


def test_without_caching():
    code, output = child(
        """
        x = make(10)
        assert device.used() == 10 * MIB
        del x
        gc.collect()
        assert device.used() == 0
        y = torch.ones(1000, device="cuda")
        assert device.used() == 2 * MIB
        assert float((y + y).sum()) == 2000
        del y
        gc.collect()
        assert device.used() == 0 and device.violations() == []
        """,
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    assert code == 0, output


def test_expandable_segments():
    code, output = child(
        """
        def segments():
            return torch.cuda.memory_snapshot()

        torch.cuda.memory._record_memory_history("all", stacks="python")
        x = make(30)
        (segment,) = segments()
        assert segment["is_expandable"]
        assert device.used() == torch.cuda.memory_reserved()
        start = segment["address"]
        y = make(50)
        (segment,) = segments()       # the same one, longer
        assert segment["address"] == start
        assert segment["total_size"] >= 80 * MIB
        assert y.data_ptr() == x.data_ptr() + 30 * MIB
        y.fill_(3)
        assert int(y.sum(dtype=torch.int64)) == 150 * MIB
        actions = [
            each["action"]
            for each in torch.cuda.memory._snapshot()["device_traces"][0]
        ]
        assert actions.count("segment_map") >= 2, actions
        del x                         # a hole at the beginning
        torch.cuda.empty_cache()
        assert device.used() == torch.cuda.memory_reserved() <= 60 * MIB
        z = make(180)                 # fits only with the hole's pages
        assert device.used() <= 256 * MIB
        del z
        # Cached pages are unmapped when an allocation does not fit.
        small = [make(20) for _ in range(8)]
        del small[::2]
        free = device.capacity() - device.used()
        assert free < 100 * MIB
        large = make(90)
        assert torch.cuda.memory_stats()["num_alloc_retries"] >= 1
        actions = [
            each["action"]
            for each in torch.cuda.memory._snapshot()["device_traces"][0]
        ]
        assert "segment_unmap" in actions
        del y, small, large
        torch.cuda.memory._record_memory_history(None)
        gc.collect()
        torch.cuda.empty_cache()
        assert device.used() == 0, device.used()
        assert device.violations() == []
        # Out of memory leaves it usable.
        try:
            make(400)
            raise SystemExit("400 MiB of 256 were given out")
        except torch.OutOfMemoryError:
            pass
        x = make(100)
        """,
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert code == 0, output


def test_pools_on_expandable_segments():
    code, output = child(
        """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = make(30)
        assert tuple(torch.cuda.memory_snapshot()[0]["segment_pool_id"]) == (
            tuple(pool.id))
        del x, pool
        gc.collect()
        torch.cuda.empty_cache()
        assert device.used() == 0, device.used()
        """,
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert code == 0, output


def test_the_asynchronous_backend():
    code, output = child(
        """
        assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
        x = make(30)
        x.fill_(2)
        assert int(x.sum(dtype=torch.int64)) == 60 * MIB
        assert torch.cuda.memory_allocated() >= 30 * MIB
        del x
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == 0
        assert device.used() == 0, device.used()
        try:
            make(400)
            raise SystemExit("400 MiB of 256 were given out")
        except torch.OutOfMemoryError:
            pass
        assert device.violations() == []
        """,
        PYTORCH_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert code == 0, output


def test_pinned_memory_by_registration():
    code, output = child(
        """
        x = torch.arange(MIB).pin_memory()
        assert x.is_pinned()
        assert torch.equal(x.cuda(non_blocking=True).cpu(), torch.arange(MIB))
        """,
        PYTORCH_ALLOC_CONF="pinned_use_cuda_host_register:True,"
        "pinned_num_register_threads:2",
    )
    assert code == 0, output
