# SPDX-License-Identifier: Apache-2.0
"""What programs do with CUDA tensors every day, against the CPU."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import copy
import threading

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _nothing_launched():
    yield
    torch.cuda.synchronize()
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0


def _mlp(device="cpu"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    return model.to(device)


def test_linear_relu_forward_and_backward_equal_the_cpu():
    cpu, cuda = _mlp(), _mlp("cuda")
    x = torch.randn(16, 20)
    y = torch.randint(0, 5, (16,))
    losses = []
    for model in (cpu, cuda):
        device = next(model.parameters()).device
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    for a, b in zip(cpu.parameters(), cuda.parameters()):
        assert b.grad.is_cuda
        assert torch.equal(a.grad, b.grad.cpu())


def test_inference_mode_and_no_grad():
    cpu, cuda = _mlp(), _mlp("cuda")
    x = torch.randn(4, 20)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = cuda(x.cuda())
            result += 1
            assert torch.equal(result.cpu(), cpu(x) + 1)
    assert result.is_inference()


def test_retain_graph_and_double_backward():
    gradients = []
    for device in ("cpu", "cuda"):
        x = torch.linspace(-2, 2, 7).to(device).requires_grad_()
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (gg,) = torch.autograd.grad((g * x).sum(), x)
        gradients.append((g.detach().cpu(), gg.cpu()))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1], gradients[1][1])


def test_state_dict_save_and_load(tmp_path):
    model = _mlp("cuda")
    path = tmp_path / "model.pt"
    torch.save(model.state_dict(), path)
    for device in ("cpu", "cuda"):
        loaded = torch.load(path, map_location=device)
        fresh = nn.Sequential(
            nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)
        ).to(device)
        fresh.load_state_dict(loaded)
        for a, b in zip(fresh.parameters(), model.parameters()):
            assert a.device.type == device
            assert torch.equal(a.cpu(), b.cpu())


def test_deepcopy_keeps_sharing():
    model = _mlp("cuda")
    model.tied = model[0]
    twin = copy.deepcopy(model)
    assert twin.tied.weight is twin[0].weight
    assert twin[0].weight.data_ptr() != model[0].weight.data_ptr()
    assert torch.equal(twin[0].weight, model[0].weight)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert model[0].weight.abs().sum().item() > 0


def test_edits_in_place_and_through_data():
    model = _mlp("cuda")
    weight = model[0].weight
    address = weight.data_ptr()
    weight.data.add_(1)
    with torch.no_grad():
        weight.mul_(2)
        weight[3:5] = 7
        weight[:, 0] = torch.arange(30.0, device="cuda")
    expected = (_mlp()[0].weight.detach() + 1) * 2
    expected[3:5] = 7
    expected[:, 0] = torch.arange(30.0)
    assert torch.equal(weight.detach().cpu(), expected)
    assert weight.data_ptr() == address


def test_other_thread_and_side_stream():
    weight = _mlp("cuda")[0].weight.detach()
    expected = weight.cpu().sum().item()
    results = []

    def work():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            results.append(weight.sum().item())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with torch.cuda.stream(torch.cuda.Stream()):
        results.append(weight.sum().item())
    assert results == [expected, expected]


def test_clip_and_zero_grad():
    norms = []
    for device in ("cpu", "cuda"):
        model = _mlp(device)
        model(torch.ones(2, 20, device=device)).sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(norm.item())
        total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        assert abs(total.item() - 0.5) < 1e-4
        model.zero_grad(set_to_none=False)
        assert all(p.grad.abs().sum().item() == 0 for p in model.parameters())
        model.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    assert norms[0] == norms[1]


def test_printing():
    tensor = torch.tensor([[1.5, -2.0], [0.25, float("nan")]], device="cuda")
    assert repr(tensor) == (
        "tensor([[ 1.5000, -2.0000],\n"
        "        [ 0.2500,     nan]], device='cuda:0')"
    )
    assert tensor.tolist()[0] == [1.5, -2.0]
    assert str(torch.arange(3, device="cuda")) == (
        "tensor([0, 1, 2], device='cuda:0')"
    )


def test_out_arguments_grow_and_shrink():
    a = torch.arange(6.0, device="cuda")
    out = torch.empty(0, device="cuda")
    assert torch.add(a, 1, out=out) is out
    assert out.tolist() == [1, 2, 3, 4, 5, 6]
    small = torch.zeros(2, device="cuda")
    with pytest.warns(UserWarning, match="was resized"):
        torch.mul(a, 2, out=small)
    assert small.tolist() == [0, 2, 4, 6, 8, 10]
    assert small.untyped_storage().nbytes() == 24
    with pytest.warns(UserWarning, match="was resized"):
        torch.mul(a[:3], 2, out=small)
    assert small.tolist() == [0, 2, 4]
    values = torch.empty(0, device="cuda")
    indices = torch.empty(0, dtype=torch.long, device="cuda")
    torch.sort(a, descending=True, out=(values, indices))
    assert values.tolist() == [5, 4, 3, 2, 1, 0]
    assert indices.tolist() == [5, 4, 3, 2, 1, 0]


def test_overlap_is_still_an_error():
    a = torch.arange(6.0, device="cuda")
    with pytest.raises(RuntimeError, match="overlap|single memory location"):
        torch.add(a[:-1], 1, out=a[1:])
    with pytest.raises(RuntimeError, match="overlap|single memory location"):
        a[:1].expand(3).add_(1)


def test_results_that_alias_an_argument_alias_it_here_too():
    a = torch.arange(6.0, device="cuda")
    assert a.add_(1) is a
    assert a.contiguous().data_ptr() == a.data_ptr()
    view = a.view(2, 3).t()
    view.mul_(2)
    assert a.tolist() == [2, 4, 6, 8, 10, 12]
    assert torch.relu_(a) is a
    assert a.to(torch.float32) is a


def test_memory_goes_back():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    x = torch.randn(1000, 100, device="cuda", requires_grad=True)
    y = (x @ x.t()).softmax(-1).sum()
    y.backward()
    del x, y
    assert torch.cuda.memory_allocated() == before


def test_record_stream_and_events():
    a = torch.ones(1000, device="cuda")
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        b = a * 2
        a.record_stream(stream)
    end.record(stream)
    end.synchronize()
    assert b.sum().item() == 2000
    assert start.elapsed_time(end) >= 0


def test_autocast_and_grad_scaler_train_as_on_the_cpu():
    weights = []
    for device in ("cpu", "cuda"):
        model = _mlp(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # A power of two rounds nothing.
        scaler = torch.amp.GradScaler(device, init_scale=8.0)
        before = model[0].weight.detach().clone()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(torch.ones(3, 20, device=device))
            assert out.dtype == torch.bfloat16
            loss = out.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert not torch.equal(before, model[0].weight)
        weights.append(model[0].weight.detach().cpu())
    assert torch.allclose(*weights, atol=1e-6)
