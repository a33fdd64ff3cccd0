# SPDX-License-Identifier: Apache-2.0
"""cuDNN's operators, with the switch on as on a card and off."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch import nn
from torch.nn import functional

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _nothing_launched():
    yield
    torch.cuda.synchronize()
    assert DEVICE.launches_without_twin() == 0


def pair(make):
    """The same module on both devices."""
    torch.manual_seed(0)
    cpu = make()
    torch.manual_seed(0)
    return cpu, make().cuda()


def test_the_switch_is_on_as_on_a_card():
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.enabled
    assert torch.backends.cudnn.version() > 90000


def test_networks_are_flattened_into_one_buffer():
    _, lstm = pair(lambda: nn.LSTM(4, 6, num_layers=2))
    storages = {p.untyped_storage().data_ptr() for p in lstm.parameters()}
    assert len(storages) == 1
    elements = sum(p.numel() for p in lstm.parameters())
    assert lstm.weight_hh_l1.untyped_storage().nbytes() == 4 * elements


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_networks_equal_the_cpu(kind, bias):
    results = []
    for model in pair(
        lambda: kind(5, 7, 2, bias=bias, bidirectional=True, batch_first=True)
    ):
        device = next(model.parameters()).device
        x = torch.linspace(-1, 1, 60).view(3, 4, 5).to(device)
        x.requires_grad_()
        output, _ = model(x)
        output.square().sum().backward()
        results.append(
            [output, x.grad] + [p.grad for p in model.parameters()]
        )
    # The CPU's own networks take other forms with and without a gradient; they
    # differ in the last bits.
    for a, b in zip(*results):
        assert torch.allclose(a, b.cpu(), atol=1e-5)


def test_dropout_between_layers_follows_the_cuda_seed():
    model = nn.LSTM(4, 6, num_layers=3, dropout=0.5).cuda()
    x = torch.ones(5, 2, 4, device="cuda", requires_grad=True)
    results = []
    for seed in (3, 3, 4):
        torch.cuda.manual_seed(seed)
        output, _ = model(x)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        results.append((output, gradient))
    for a, b in zip(results[0], results[1]):
        assert torch.equal(a, b)
    assert not torch.equal(results[0][0], results[2][0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


def test_gradients_of_a_network_with_dropout_are_those_of_its_masks():
    """A finite difference under the same seed."""
    model = nn.GRU(3, 4, num_layers=2, dropout=0.5).double().cuda()
    x = torch.linspace(-1, 1, 24).double().view(4, 2, 3).cuda()

    def loss(values):
        torch.cuda.manual_seed(1)
        return model(values)[0].square().sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    step = torch.zeros_like(x)
    step[1, 1, 2] = 1e-6
    slope = (loss(x + step) - loss(x - step)) / 2e-6
    assert abs(slope - leaf.grad[1, 1, 2]) < 1e-7


def test_networks_under_autocast():
    model = nn.LSTM(4, 6).cuda()
    x = torch.ones(5, 2, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, _ = model(x)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert model.weight_ih_l0.grad.dtype == torch.float32
    expected, _ = model(x)
    assert torch.allclose(output.float(), expected, atol=0.02)


def test_networks_without_gradient_and_without_cudnn():
    cpu, cuda = pair(lambda: nn.LSTM(4, 6))
    x = torch.ones(5, 2, 4)
    with torch.inference_mode():
        expected = cpu(x)[0]
        assert torch.equal(cuda(x.cuda())[0].cpu(), expected)
        with torch.backends.cudnn.flags(enabled=False):
            native = cuda(x.cuda())[0].cpu()
    assert torch.allclose(native, expected, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm(layout):
    results = []
    for model in pair(lambda: nn.BatchNorm2d(3)):
        device = model.weight.device
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
        x = x.to(device).to(memory_format=layout).requires_grad_()
        output = model(x)
        output.pow(3).sum().backward()
        model.eval()
        results.append(
            [output, model(x), x.grad, model.weight.grad, model.bias.grad,
             model.running_mean, model.running_var]
        )  # fmt: skip
    for a, b in zip(*results):
        assert torch.equal(a, b.cpu())


def test_cudnn_batch_norm_by_name():
    x, weight = torch.randn(4, 3, 5, device="cuda"), torch.ones(3, device="cuda")
    output, mean, invstd, reserve = aten.cudnn_batch_norm(
        x, weight, weight * 0, None, None, True, 0.1, 1e-5
    )
    assert torch.allclose(output.mean((0, 2)), weight * 0, atol=1e-6)
    assert mean.shape == invstd.shape == (3,)
    grads = aten.cudnn_batch_norm_backward(
        x, torch.ones_like(x), weight, None, None, mean, invstd, 1e-5, reserve
    )
    assert torch.allclose(grads[0], torch.zeros_like(x), atol=1e-5)
    assert torch.allclose(grads[2], weight * 20)


def test_convolutions_by_name():
    x, w = torch.randn(2, 4, 6, 6), torch.randn(8, 2, 3, 3)
    expected = functional.conv2d(x, w, stride=2, padding=1, groups=2)
    options = ([2, 2], [1, 1], 2)  # stride, dilation, groups
    result = aten.cudnn_convolution(
        x.cuda(), w.cuda(), [1, 1], *options, False, False, False
    )
    assert torch.equal(result.cpu(), expected)
    fused = aten.cudnn_convolution_relu(
        x.cuda(), w.cuda(), None, [2, 2], [1, 1], [1, 1], 2
    )
    assert torch.equal(fused.cpu(), expected.relu())
    added = aten.cudnn_convolution_add_relu(
        x.cuda(), w.cuda(), fused, 0.5, None, [2, 2], [1, 1], [1, 1], 2
    )
    assert torch.equal(added.cpu(), (expected + 0.5 * expected.relu()).relu())


def test_samplers():
    theta = torch.randn(2, 2, 3)
    x = torch.randn(2, 3, 5, 5)
    results = []
    for device in ("cpu", "cuda"):
        t = theta.clone().to(device).requires_grad_()
        image = x.clone().to(device).requires_grad_()
        grid = functional.affine_grid(t, (2, 3, 4, 4), align_corners=True)
        output = functional.grid_sample(image, grid, align_corners=True)
        output.square().sum().backward()
        results.append([grid, output, t.grad, image.grad])
    for a, b in zip(*results):
        assert torch.allclose(a, b.cpu(), atol=1e-5)


def test_the_kernels_of_sync_batch_norm():
    """Two halves of a batch, joined, are the batch norm of the whole."""
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4)
    weight, bias = torch.randn(3), torch.randn(3)
    grad = torch.randn(6, 3, 4)
    leaf = x.clone().requires_grad_()
    running = [torch.zeros(3), torch.ones(3)]
    w = weight.clone().requires_grad_()
    expected = functional.batch_norm(leaf, *running, w, bias, True, 0.1, 1e-5)
    expected.backward(grad)

    halves = [x[:2].cuda(), x[2:].cuda()]
    grads = [grad[:2].cuda(), grad[2:].cuda()]
    stats = [aten.batch_norm_stats(h, 1e-5) for h in halves]
    counts = torch.tensor([8.0, 16.0], device="cuda")
    own = [torch.zeros(3).cuda(), torch.ones(3).cuda()]
    mean, invstd = aten.batch_norm_gather_stats_with_counts(
        halves[0],
        torch.stack([s[0] for s in stats]),
        torch.stack([s[1] for s in stats]),
        *own, 0.1, 1e-5, counts,
    )  # fmt: skip
    for a, b in zip(own, running):
        assert torch.allclose(a.cpu(), b, atol=1e-6)
    output = [
        aten.batch_norm_elemt(h, weight.cuda(), bias.cuda(), mean, invstd, 1e-5)
        for h in halves
    ]
    assert torch.allclose(torch.cat(output).cpu(), expected, atol=1e-5)
    reduced = [
        aten.batch_norm_backward_reduce(
            g, h, mean, invstd, weight.cuda(), True, True, True
        )
        for g, h in zip(grads, halves)
    ]
    total = [sum(parts) for parts in zip(*reduced)]
    back = [
        aten.batch_norm_backward_elemt(
            g, h, mean, invstd, weight.cuda(), total[0], total[1], counts.int()
        )
        for g, h in zip(grads, halves)
    ]
    assert torch.allclose(torch.cat(back).cpu(), leaf.grad, atol=1e-5)
    assert torch.allclose(total[2].cpu(), w.grad, atol=1e-4)


def test_products_with_a_type_of_their_own():
    a, b = torch.randn(3, 5).half(), torch.randn(5, 4).half()
    expected = a.float() @ b.float()
    result = torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float32)
    assert result.dtype == torch.float32
    assert torch.equal(result.cpu(), expected)
    c = torch.randn(3, 4)
    result = torch.addmm(c.cuda(), a.cuda(), b.cuda(), out_dtype=torch.float32)
    assert torch.allclose(result.cpu(), c + expected, atol=1e-6)
    result = torch.bmm(a[None].cuda(), b[None].cuda(), out_dtype=torch.float32)
    assert torch.equal(result.cpu()[0], expected)


def test_old_dropout():
    torch.cuda.manual_seed(0)
    x = torch.ones(1000, device="cuda")
    output, mask = aten._fused_dropout(x, 0.75)
    assert mask.dtype == torch.uint8
    assert torch.equal(output, mask / 0.75)
    assert abs(mask.float().mean().item() - 0.75) < 0.05
    assert torch.equal(aten._masked_scale(x, mask, 2.0), mask * 2.0)
