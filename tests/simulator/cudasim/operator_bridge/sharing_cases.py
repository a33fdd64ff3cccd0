# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors in several processes, through torch.multiprocessing.

Unmodified PyTorch with its own allocator on both sides. The test_sharing*.py
run these with settings of their own, each file in its own process.
"""

import copy
import gc
import os

import pytest
import torch
import torch.multiprocessing as mp

from tests.simulator.cudasim.operator_bridge import sharing_workers as workers
from tests.simulator.cudasim.operator_bridge import simulated


def _shared_files():
    """PyTorch's files that are mapped here: other programs have some, too, and
    semaphores go when the thread of a queue has ended, which nobody awaits."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        paths = {line.split()[5] for line in maps if "/dev/shm/" in line}
    return sorted(path for path in paths
                  if path.startswith(("/dev/shm/torch_", "/dev/shm/cuda.shm")))


def _descriptors():
    return sorted(map(workers._target, os.listdir("/proc/self/fd")))


@pytest.fixture(autouse=True)
def nothing_is_left():
    torch.empty(1, device="cuda")
    files = _shared_files()
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    device = simulated.current()
    assert _shared_files() == files
    # The path of a test's log has the word in it, too.
    assert [d for d in _descriptors() if d.startswith("/memfd:cudasim")] == sorted(
        f"/memfd:cudasim-{name} (deleted)"
        for name in [f"device-{i}" for i in range(torch.cuda.device_count())]
        + ["host"]
    )
    assert device.violations() == []
    assert device.launches_without_twin() == 0
    assert device.used(0) == 0


@pytest.fixture(
    params=os.environ.get("SHARING_METHODS", "spawn,forkserver").split(",")
)
def context(request):
    yield mp.get_context(request.param)
    # Of a test that failed: it would wait for ever, and we for it at the end.
    left = mp.active_children()
    for child in left:
        child.kill()
        child.join()
    assert left == []


def _start(context, target, *arguments):
    child = context.Process(target=workers.run, args=(target, *arguments))
    child.start()
    return child


def _blocks():
    """Of this process. Not their bytes, of which only those count that are on
    the device."""
    return torch.cuda.memory_stats()["allocation.all.current"]


def _end(child, report):
    child.join(60)
    assert child.exitcode == 0
    child.close()
    assert report["pid"] != os.getpid()
    assert report["violations"] == []
    assert report["launches"] == 0
    # Nothing is open of the parent's any more, only its own.
    assert len([d for d in report["descriptors"] if "cudasim" in d]) == (
        torch.cuda.device_count() + 1
    )


def test_a_child_has_a_device_and_the_bridge(context):
    outbox = context.Queue()
    child = _start(context, workers.check_device, outbox)
    here, there = os.environ.get(
        "SHARING_ALLOCATORS", "native,native"
    ).split(",")
    assert outbox.get(timeout=120) == (
        True,
        [[5.0, 14.0], [14.0, 50.0]],
        there,
    )
    assert simulated.installed_allocator() == here
    child.join(60)
    assert child.exitcode == 0


def test_the_child_reads_and_edits_tensors_of_the_parent(context):
    inbox, outbox = context.Queue(), context.Queue()
    child = _start(context, workers.edit, inbox, outbox)
    torch.manual_seed(0)
    for made in (
        torch.randn(1000),
        torch.randn(3, 4, 5).transpose(0, 2),
        torch.arange(7),
        torch.randn(64).half(),
        torch.randn(10, dtype=torch.complex64).real,
        torch.zeros(()),
    ):
        tensor = made.cuda()
        inbox.put(tensor)
        numbers, place = outbox.get(timeout=120)
        assert torch.equal(torch.tensor(numbers, dtype=made.dtype), made)
        assert place == "cuda:0"
        assert torch.equal(tensor.cpu(), made * 2)
    inbox.put(None)
    report = outbox.get(timeout=60)
    assert report["used"][0] == 0
    del tensor
    _end(child, report)


def test_the_parent_reads_and_edits_tensors_of_the_child(context):
    outbox, done = context.Queue(), context.Event()
    own = simulated.current().used(0)
    child = _start(context, workers.produce, outbox, done)
    numbers, integers, flags, parameter, part = [
        outbox.get(timeout=120) for _ in range(5)
    ]
    torch.manual_seed(5)
    expected = torch.randn(300, 20)
    assert torch.equal(numbers.cpu(), expected)
    assert torch.equal(integers.cpu(), torch.arange(50))
    assert torch.equal(flags.cpu(), torch.randn(7) > 0)
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad
    assert torch.equal(part.cpu(), expected[3:9, ::2])
    part.zero_()
    expected[3:9, ::2] = 0
    assert torch.equal(numbers.cpu(), expected)
    torch.cuda.synchronize()
    # The child counts the bytes.
    assert simulated.current().used(0) == own
    del numbers, integers, flags, parameter, part
    gc.collect()
    done.set()
    seen, report = outbox.get(timeout=60)
    assert torch.equal(torch.from_numpy(seen), expected)
    _end(child, report)


def test_tensors_of_one_storage_share_one_block(context):
    inbox, outbox = context.Queue(), context.Queue()
    child = _start(context, workers.views, inbox, outbox)
    whole = torch.arange(24.0, device="cuda").reshape(4, 6)
    inbox.put((whole, whole[2], whole.t()))
    step, same, storages, own, numbers = outbox.get(timeout=120)
    assert step == 2 * 6 * 4 and same and storages == 1 and own == 0
    expected = torch.arange(24.0).reshape(4, 6)
    expected[2] = -1
    assert torch.equal(torch.tensor(numbers), expected.t())
    assert torch.equal(whole.cpu(), expected)
    inbox.put("done")
    _end(child, outbox.get(timeout=60))


def test_memory_waits_for_its_last_reader(context):
    inbox, outbox = context.Queue(), context.Queue()
    child = _start(context, workers.hold, inbox, outbox)
    torch.manual_seed(1)
    expected = torch.randn(1 << 20)
    tensor = expected.cuda()
    before = _blocks()
    inbox.put(tensor)
    assert outbox.get(timeout=120) == "has it"
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()
    # Dropped here, in use there: neither reused nor given back.
    other = torch.full((1 << 20,), 3.0, device="cuda")
    torch.cuda.empty_cache()
    assert _blocks() == before + 1
    inbox.put("read it")
    assert torch.equal(torch.from_numpy(outbox.get(timeout=60)), expected)
    torch.cuda.ipc_collect()
    assert _blocks() == before
    del other
    inbox.put("done")
    _end(child, outbox.get(timeout=60))


def test_a_shared_module_is_trained_by_the_child(context):
    torch.manual_seed(2)
    on_cpu = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    )
    model = copy.deepcopy(on_cpu).cuda().share_memory()
    batch = torch.randn(16, 8)
    inbox, outbox = context.Queue(), context.Queue()
    # Not as an argument: a process keeps its arguments as long as it lives.
    child = _start(context, workers.train, inbox, 3, batch, outbox)
    inbox.put(model)
    report = outbox.get(timeout=120)
    optimizer = torch.optim.SGD(on_cpu.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        on_cpu(batch).square().mean().backward()
        optimizer.step()
    for here, there in zip(model.parameters(), on_cpu.parameters()):
        assert here.requires_grad
        assert torch.equal(here.detach().cpu(), there.detach())
    del model, here
    _end(child, report)


def test_tensors_through_a_pipe(context):
    ours, theirs = context.Pipe()
    child = _start(context, workers.answer, theirs)
    theirs.close()
    for size in (5, 5000, 700_000):
        x = torch.arange(float(size), device="cuda")
        torch.cuda.synchronize()
        ours.send(x)
        y = ours.recv()
        assert torch.equal(y.cpu(), torch.arange(float(size)) + 1)
        torch.cuda.synchronize()
        del x, y
        ours.send("done")
    ours.send(None)
    _end(child, ours.recv())
    ours.close()


def test_an_event_of_the_parent_is_waited_for(context):
    inbox, outbox = context.Queue(), context.Queue()
    child = _start(context, workers.wait_for_event, inbox, outbox)
    tensor = torch.zeros(100_000, device="cuda")
    torch.cuda.synchronize()
    event = torch.cuda.Event(interprocess=True)
    side = torch.cuda.Stream()
    source = torch.arange(100_000.0).pin_memory()
    with torch.cuda.stream(side):
        tensor.copy_(source, non_blocking=True)
        event.record()
    inbox.put((tensor, event.ipc_handle()))
    numbers, done = outbox.get(timeout=120)
    assert done and torch.equal(torch.from_numpy(numbers), source)
    torch.cuda.synchronize()
    inbox.put("done")
    _end(child, outbox.get(timeout=60))
    del tensor, event
