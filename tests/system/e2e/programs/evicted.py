# SPDX-License-Identifier: Apache-2.0
"""With everything evicted, each of these uses finds the right bytes.

    evicted.py NAME

After each use everything is evicted once more and read back.
"""

import copy
import io
import sys
import threading

import torch
from torch import nn

import stratalloc

torch.manual_seed(0)
reference = nn.Sequential(nn.Linear(1600, 1600), nn.ReLU(),
                          nn.Linear(1600, 1600))
model = copy.deepcopy(reference).to("cuda")
addresses = [p.untyped_storage().data_ptr() for p in model.parameters()]


def on_device():
    """Bytes of parameters, and how many of them are on the device."""
    live = [row for row in stratalloc.report()["layers"]
            if row["category"] == "parameter"]
    return (sum(row["live"] for row in live),
            sum(row["device"] for row in live))


def evict():
    stratalloc.evict()
    live, device = on_device()
    assert live > 0
    assert device == 0, (live, device)


def same(left, right):
    assert torch.equal(left.detach().cpu(), right.detach().cpu())


def all_same():
    for mine, theirs in zip(model.parameters(), reference.parameters()):
        same(mine, theirs)
    assert [p.untyped_storage().data_ptr() for p in model.parameters()] == addresses


def thread():
    found = []
    worker = threading.Thread(
        target=lambda: found.append(model[0].weight.sum().item()))
    worker.start()
    worker.join()
    assert found == [expected]


def side_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        value = model[0].weight.sum()
    stream.synchronize()
    assert value.item() == expected


def state_dict():
    for name, value in model.state_dict().items():
        same(value, reference.state_dict()[name])


def save():
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location="cpu")
    for name, value in reference.state_dict().items():
        same(loaded[name], value)


def deepcopy():
    clone = copy.deepcopy(model)
    for mine, theirs in zip(clone.parameters(), reference.parameters()):
        same(mine, theirs)


def in_place_no_grad():
    for net in (model, reference):
        with torch.no_grad():
            net[0].weight.mul_(2)
            net[2].bias[3:7] = 1.5


def in_place_data():
    for net in (model, reference):
        net[0].weight.data.add_(0.25)
        net[2].weight.data[0].zero_()


def load_state_dict():
    state = {name: value * 3 for name, value in reference.state_dict().items()}
    for net in (model, reference):
        net.load_state_dict(state)


def gradients():
    """Of the model on the device, as copies on the host."""
    model.zero_grad()
    model(torch.ones(3, 1600, device="cuda")).square().sum().backward()
    return [parameter.grad.cpu() for parameter in model.parameters()]


def forward_backward():
    stratalloc.restore()
    before = gradients()
    evict()
    for mine, theirs in zip(gradients(), before):
        same(mine, theirs)
    evict()
    for parameter, theirs in zip(model.parameters(), before):
        same(parameter.grad, theirs)


def graph():
    """Captured while its weights are away; they stay as long as the graph."""
    x = torch.randn(16, 1600)
    static = x.to("cuda")
    # The same with other tensors first, as PyTorch demands before a capture:
    # the first product makes cuBLAS's handle, and real cuBLAS makes it by calls
    # that a capture forbids (pytorch 99397).
    torch.relu(nn.functional.linear(
        static, torch.ones(1600, 1600, device="cuda"),
        torch.ones(1600, device="cuda")))
    evict()  # and asserts that no weight is on the device
    captured = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(captured):
        y = model(static)
    stratalloc.evict()
    live, device = on_device()
    assert device == live > 0, (live, device)
    captured.replay()
    with torch.no_grad():
        torch.testing.assert_close(y.cpu(), reference(x))
    del y, static
    captured.reset()


def module_argument():
    stratalloc.restore()
    moved = stratalloc.evict(model[0])
    assert moved > 0
    assert stratalloc.restore(model[0].weight) > 0
    assert stratalloc.evict([model, {"x": model[2].weight}]) > 0
    assert stratalloc.evict(torch.ones(3)) == 0


use = globals()[sys.argv[1]]
torch.set_num_threads(1)
expected = model[0].weight.sum().item()
evict()
use()
all_same()
evict()
all_same()
stratalloc.restore()
all_same()
