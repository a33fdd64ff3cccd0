# SPDX-License-Identifier: Apache-2.0
"""Items of the operator list: optimizers, random numbers, checkpointing and
training on several devices or in several processes."""

import copy
import os
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.utils import checkpoint

from tests.simulator.cudasim.operator_bridge.listed import difference, item, state_of

# --- Optimizers ------------------------------------------------------------------


def small_model(device):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 4)
    ).to(device)


def train(device, make, steps=4, scaler=None):
    model = small_model(device)
    optimizer = make(model.parameters())
    x = torch.linspace(-1, 1, 18).view(3, 6).to(device)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return state_of(model), [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]


@item(
    "AdamW: foreach",
    1e-6,
    "the CPU takes one tensor at a time and divides in another order",
)
def adamw_foreach(device):
    return train(device, lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True))


@item("AdamW, Adam (amsgrad), SGD: fused")
def fused_optimizers(device):
    return [
        train(device, make)
        for make in (
            lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
            lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, fused=True),
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
        )
    ]


@item("AdamW, SGD: fused, scale and infinities from GradScaler")
def fused_with_scaler(device):
    results = []
    for make in (
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        # Momentum would start from memory nobody wrote when the first step is
        # skipped, here and on a card.
        lambda p: torch.optim.SGD(p, lr=0.01, fused=True),
    ):
        # 2^127 overflows at once: skipped steps until the scale fits.
        scaler = torch.amp.GradScaler(
            device, init_scale=2.0**127, backoff_factor=2.0**-60
        )
        results.append(train(device, make, scaler=scaler))
        assert scaler.get_scale() < 2.0**127
    return results


# --- Random numbers and checkpointing ---------------------------------------------


@item("Random generators: seeds, states, forks, offsets", measures_itself=True)
def generators():
    def draw(generator=None):
        return torch.randn(64, device="cuda", generator=generator)

    torch.cuda.manual_seed_all(5)
    first = draw()
    state = torch.cuda.get_rng_state()
    second = draw()
    torch.cuda.set_rng_state(state)
    unequal = [difference(second, draw())]
    torch.manual_seed(5)
    unequal.append(difference(first, draw()))
    own = torch.Generator(device="cuda").manual_seed(5)
    unequal.append(difference(first, draw(own)))
    assert own.get_offset() == 4
    twin = own.clone_state()
    unequal.append(difference(draw(own), draw(twin)))
    own.set_offset(0)
    unequal.append(difference(first, draw(own)))
    with torch.random.fork_rng(devices=[0]):
        draw()
    unequal.append(difference(second, draw()))
    assert not torch.equal(first, second)
    return max(unequal)


@item("Gradient checkpointing with dropout, both forms", measures_itself=True)
def checkpointing():
    results = []
    for reentrant in (None, True, False):
        torch.manual_seed(3)
        model = small_model("cuda").append(nn.Dropout(0.4))
        model[3].register_forward_hook(
            lambda m, i, o: nn.functional.dropout(o, 0.5)
        )
        torch.manual_seed(3)
        x = torch.linspace(-1, 1, 18).view(3, 6).cuda().requires_grad_()
        if reentrant is None:
            y = model(x)
        else:
            y = checkpoint.checkpoint(model, x, use_reentrant=reentrant)
        y.square().sum().backward()
        results.append((y, x.grad, state_of(model)))
    return max(difference(results[0], other) for other in results[1:])


# --- Several devices and processes -------------------------------------------------


@item(
    "DataParallel over two devices: train step",
    1e-6,
    "gradients of the halves are added in another order",
)
def data_parallel(device):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    ).to(device)
    wrapped = model
    if device != "cpu":
        wrapped = nn.DataParallel(model, device_ids=[0, 1])
    x = torch.randn(6, 3, 8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    for _ in range(2):
        optimizer.zero_grad()
        outputs.append(wrapped(x))
        outputs[-1].square().mean().backward()
        optimizer.step()
    return outputs, state_of(model)


def in_two_processes(what, timeout=240):
    """Trains with `what` over gloo in two processes; what rank 0 ends with."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            MASTER_ADDR="127.0.0.1",
            GLOO_SOCKET_IFNAME="lo",
            WORLD_SIZE="2",
            OMP_NUM_THREADS="1",
            PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
        )
        script = os.path.join(os.path.dirname(__file__), "listed_worker.py")
        workers = [
            subprocess.Popen(
                [sys.executable, script, what, folder],
                env=dict(environment, RANK=str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            for worker in workers:
                output, _ = worker.communicate(timeout=timeout)
                if worker.returncode != 0:
                    raise RuntimeError(output[-4000:])
        finally:
            for worker in workers:
                worker.kill()
        return torch.load(os.path.join(folder, "result.pt"))


def distributed_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Linear(16, 4)
    )


def distributed_batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 8, generator=generator)


def alone_on_the_cpu(make_optimizer, steps=3):
    """The same training by one process on the whole batch."""
    model = distributed_model()
    optimizer = make_optimizer(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(distributed_batch()).square().mean().backward()
        optimizer.step()
    return copy.deepcopy(model.state_dict())


def make_adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


DISTRIBUTED_WHY = "the mean over two half batches, added in another order"


@item("DDP over gloo, two processes", 1e-5, DISTRIBUTED_WHY, True)
def ddp():
    return difference(
        dict(alone_on_the_cpu(make_adamw)), in_two_processes("ddp")
    )


@item("FSDP2 fully_shard over gloo, two processes", 1e-5, DISTRIBUTED_WHY, True)
def fsdp():
    return difference(
        dict(alone_on_the_cpu(make_adamw)), in_two_processes("fsdp")
    )
