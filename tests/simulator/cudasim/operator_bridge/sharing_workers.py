# SPDX-License-Identifier: Apache-2.0
"""What the child processes of sharing_cases.py run.

A module of its own: a spawned child imports the module of its target, and the
tests' own modules load the device for the parent. Here every_process/ did that
before torch was imported.
"""

import contextlib
import gc
import os

import torch

from tests.simulator.cudasim.operator_bridge import simulated


def run(target, *arguments):
    """A child: `target`, then this process's report to whom target returns."""
    evicts = os.environ.get("SHARING_EVICTS") == "1"
    with everything_leaves() if evicts else contextlib.nullcontext():
        answer = target(*arguments)
    if answer is not None:
        answer(report())


@contextlib.contextmanager
def everything_leaves():
    """Another thread evicts in this process, and has when the block begins."""
    from python_shim.testing.evicting import evicting

    with evicting() as evictions:
        # In handles of its own, where nothing lies that is shared.
        own = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
        evictions.await_first()
        yield
        del own


def report():
    """What the parent wants to know of this process at its end."""
    gc.collect()
    torch.cuda.ipc_collect()
    # PyTorch keeps the descriptors of exported segments as long as these.
    torch.cuda.empty_cache()
    device = simulated.current()
    return {
        "pid": os.getpid(),
        "violations": device.violations(),
        "launches": device.launches_without_twin(),
        "used": [device.used(i) for i in range(torch.cuda.device_count())],
        "descriptors": sorted(
            target
            for target in map(_target, os.listdir("/proc/self/fd"))
            if target.startswith(("/memfd:cudasim", "/dev/shm"))
        ),
    }


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def check_device(outbox):
    """Is this an ordinary process with a simulated device?"""
    y = torch.arange(6.0, device="cuda").reshape(2, 3)
    outbox.put(
        (
            torch.cuda.is_available(),
            (y @ y.t()).cpu().numpy().tolist(),
            simulated.installed_allocator(),
        )
    )


def edit(inbox, outbox):
    """Answers each tensor with its numbers, and doubles it in place."""
    while (tensor := inbox.get()) is not None:
        numbers = tensor.cpu().clone()
        with torch.no_grad():
            tensor *= 2
        torch.cuda.synchronize()
        outbox.put((numbers.numpy().tolist(), str(tensor.device)))
        del tensor
    return outbox.put


def produce(outbox, done):
    """Sends tensors of its own and keeps them until they were used."""
    torch.manual_seed(5)
    kept = [torch.randn(300, 20), torch.arange(50), torch.randn(7) > 0]
    kept = [tensor.cuda() for tensor in kept]
    parameter = torch.nn.Parameter(torch.ones(4, device="cuda"))
    for tensor in kept:
        outbox.put(tensor)
    outbox.put(parameter)
    outbox.put(kept[0][3:9, ::2])
    done.wait()
    numbers = kept[0].cpu().numpy()
    del kept, tensor, parameter
    torch.cuda.ipc_collect()
    return lambda report: outbox.put((numbers, report))


def views(inbox, outbox):
    """Tensors of one storage stay tensors of one storage, and take no memory of
    this process's."""
    before = simulated.current().used(0)
    whole, part, turned = inbox.get()
    step = part.data_ptr() - whole.data_ptr()
    same = turned.data_ptr() == whole.data_ptr()
    part.fill_(-1)
    numbers = turned.cpu().numpy().tolist()
    storages = {t.untyped_storage().data_ptr() for t in (whole, part, turned)}
    own = simulated.current().used(0) - before
    torch.cuda.synchronize()
    del whole, part, turned
    outbox.put((step, same, len(storages), own, numbers))
    inbox.get()
    return outbox.put


def hold(inbox, outbox):
    """Reads a tensor whose sender has dropped it, and lets go when told."""
    tensor = inbox.get()
    outbox.put("has it")
    inbox.get()
    numbers = tensor.cpu().numpy().copy()
    torch.cuda.synchronize()
    del tensor
    outbox.put(numbers)
    inbox.get()
    return outbox.put


def train(inbox, steps, batch, outbox):
    """Trains a model whose parameters live in the parent."""
    model = inbox.get()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch.to("cuda")).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    del model, optimizer
    return outbox.put


def answer(pipe):
    """Sends back what it gets, through another block of memory."""
    while (tensor := pipe.recv()) is not None:
        result = tensor + 1
        torch.cuda.synchronize()
        pipe.send(result)
        pipe.recv()
        del tensor, result
        torch.cuda.ipc_collect()
    return pipe.send


def add(pipe):
    """Adds what it gets to a tensor of its own, when told, and one to that."""
    total = torch.zeros(1 << 20, device="cuda")
    while (tensor := pipe.recv()) is not None:
        pipe.send("has it")
        pipe.recv()
        total += tensor
        tensor += 1
        torch.cuda.synchronize()
        del tensor
        torch.cuda.ipc_collect()
        pipe.send(total.cpu().numpy())
    return pipe.send


def wait_for_event(inbox, outbox):
    """Honours an event of the parent that it has never seen otherwise."""
    tensor, handle = inbox.get()
    event = torch.cuda.Event.from_ipc_handle(tensor.device, handle)
    event.wait()
    numbers = tensor.cpu().numpy().copy()
    event.synchronize()
    done = event.query()
    del tensor, event
    outbox.put((numbers, done))
    inbox.get()
    return outbox.put
