# SPDX-License-Identifier: Apache-2.0
"""Tensor.record_stream: a block is not given out again while another stream
may still use it. On an asynchronous device, where it matters."""

import gc

from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB", mode="async", seed=5)

import torch  # pylint: disable=wrong-import-position

MIB = 1 << 20


def make():
    return torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")


def settle():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0
    assert device.used() == 0


def test_a_recorded_block_waits_for_its_stream():
    side = torch.cuda.Stream()
    x = make()
    where = x.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    pinned = torch.zeros(4 * MIB, dtype=torch.uint8).pin_memory()
    scratch = torch.empty(4096, dtype=torch.uint8, device="cuda")
    scratch.record_stream(side)
    with torch.cuda.stream(side):
        # No question of an allocator's gets through these; ours asks the driver
        # at each of them whether the stream captures.
        for _ in range(2000):
            scratch.copy_(pinned[:4096], non_blocking=True)
        x.copy_(pinned, non_blocking=True)
    x.record_stream(side)
    del x
    stats = torch.cuda.memory_stats()
    # Freed by the program, not by the allocator: an event is pending.
    assert stats["allocated_bytes.all.current"] == 4096
    assert stats["active_bytes.all.current"] == 4 * MIB + 4096
    y = make()
    assert y.data_ptr() != where
    torch.cuda.synchronize()
    z = make()  # looks after pending events
    again = make()
    assert where in (z.data_ptr(), again.data_ptr())
    assert device.violations() == []
    del y, z, again, pinned, scratch
    settle()


def test_without_it_the_block_is_given_out_at_once():
    side = torch.cuda.Stream()
    x = make()
    where = x.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.fill_(1)
    del x
    y = make()
    assert y.data_ptr() == where
    y.fill_(2)  # nothing orders this after the other stream's write
    assert len(device.violations()) >= 1
    device.clear_violations()
    del y
    torch.cuda.synchronize()
    device.clear_violations()
    settle()


def test_blocks_belong_to_the_stream_of_their_allocation():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = make()
    where = x.data_ptr()
    del x
    y = make()
    assert y.data_ptr() != where
    with torch.cuda.stream(side):
        z = make()
    assert z.data_ptr() == where
    assert device.violations() == []
    del y, z
    settle()


def test_many_streams_and_reuse():
    streams = [torch.cuda.Stream() for _ in range(3)]
    main = torch.cuda.current_stream()
    total = torch.zeros(MIB, device="cuda")
    for step in range(12):
        x = torch.full((MIB,), float(step), device="cuda")
        side = streams[step % 3]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = x * 2
        x.record_stream(side)
        main.wait_stream(side)
        total += y
        y.record_stream(main)
        del x, y
    assert torch.equal(total.cpu(), torch.full((MIB,), 132.0))
    assert device.violations() == []
    del total
    settle()
