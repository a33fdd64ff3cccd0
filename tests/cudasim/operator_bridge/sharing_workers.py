# SPDX-License-Identifier: Apache-2.0
"""What the child processes of sharing_cases.py run.

A module of its own: a spawned child imports the module of its target, and the
tests' own modules load the device for the parent. Here every_process/ did that
before torch was imported.
"""

import gc
import os

import torch

from tests.cudasim.operator_bridge import simulated


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
    outbox.put(report())


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
    outbox.put((numbers, report()))


def views(inbox, outbox):
    """Tensors of one storage stay tensors of one storage."""
    whole, part, turned = inbox.get()
    step = part.data_ptr() - whole.data_ptr()
    same = turned.data_ptr() == whole.data_ptr()
    part.fill_(-1)
    numbers = turned.cpu().numpy().tolist()
    storages = {t.untyped_storage().data_ptr() for t in (whole, part, turned)}
    own = simulated.current().used(0)
    torch.cuda.synchronize()
    del whole, part, turned
    outbox.put((step, same, len(storages), own, numbers))
    inbox.get()
    outbox.put(report())


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
    outbox.put(report())


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
    outbox.put(report())


def answer(pipe):
    """Sends back what it gets, through another block of memory."""
    while (tensor := pipe.recv()) is not None:
        result = tensor + 1
        torch.cuda.synchronize()
        pipe.send(result)
        pipe.recv()
        del tensor, result
        torch.cuda.ipc_collect()
    pipe.send(report())
    pipe.close()


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
    outbox.put(report())
