# SPDX-License-Identifier: Apache-2.0
"""What the simulated device cannot compute fails by name, and loudly."""

import ctypes

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="128MiB")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.nn import functional


def launch_a_kernel_without_a_twin():
    """A kernel of a module whose image nobody can read. Returns the error."""
    module = ctypes.c_void_p()
    function = ctypes.c_void_p()
    cuda = DEVICE.cuda
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
    assert (
        cuda.cuModuleGetFunction(
            ctypes.byref(function), module, b"nobodys_kernel"
        )
        == 0
    )
    return cuda.cuLaunchKernel(
        function, 1, 1, 1, 1, 1, 1, 0, None, None, None
    )


def test_cuda_only_operators_are_refused_by_name():
    q = torch.randn(1, 2, 4, 8, device="cuda")
    with pytest.raises(
        NotImplementedError,
        match="'aten::_triton_scaled_dot_attention'.*only a CUDA kernel",
    ):
        torch.ops.aten._triton_scaled_dot_attention(q, q, q)
    assert DEVICE.bridge.cudasim_bridge_refused() > 20
    assert DEVICE.operators > 1000


def test_installing_again_changes_nothing():
    assert DEVICE.bridge.cudasim_bridge_install() == DEVICE.operators


def test_a_broken_device_computes_no_more():
    tensor = torch.ones(4, device="cuda")
    assert launch_a_kernel_without_a_twin() == 801
    for compute in (
        lambda: tensor + 1,
        lambda: tensor.add_(1),
        lambda: torch.randn(3, device="cuda"),
        lambda: functional.scaled_dot_product_attention(
            *[tensor.view(1, 1, 2, 2)] * 3
        ),
    ):
        with pytest.raises(RuntimeError, match="CUDA error: operation not"):
            compute()
    DEVICE.cuda.cudasim_clear_errors()
    assert (tensor + 1).sum().item() == 8


def test_attention_needs_no_launch():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    expected = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
    result = functional.scaled_dot_product_attention(
        q.cuda(), k.cuda(), v.cuda()
    )
    assert torch.allclose(result.cpu(), expected, atol=1e-6)
    leaf = q.cuda().requires_grad_()
    functional.scaled_dot_product_attention(
        leaf, k.cuda(), v.cuda(), is_causal=True
    ).sum().backward()
    assert leaf.grad.isfinite().all().item()


def test_convolution_and_batch_norm_do_not_reach_cudnn():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.ConvTranspose2d(8, 4, 2, stride=2),
        torch.nn.Conv2d(4, 4, 3, groups=4),
        torch.nn.AdaptiveAvgPool2d(2),
    )
    x = torch.randn(2, 3, 16, 16)
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.cuda()
    result = model(x.cuda())
    result.sum().backward()
    assert torch.equal(result.cpu(), expected)
    for p, gradient in zip(model.parameters(), gradients):
        assert torch.allclose(p.grad.cpu(), gradient, atol=1e-5)


def test_half_softmax_to_float():
    x = torch.randn(4, 9)
    for dtype in (torch.half, torch.bfloat16):
        leaf = x.to(dtype).cuda().requires_grad_()
        result = torch.softmax(leaf, -1, dtype=torch.float32)
        assert result.dtype == torch.float32
        expected = torch.softmax(x.to(dtype).float(), -1)
        assert torch.equal(result.detach().cpu(), expected)
        result.square().sum().backward()
        assert leaf.grad.dtype == dtype


def test_launches_fail_by_name(capfd):
    refused = DEVICE.launches_without_twin()
    assert launch_a_kernel_without_a_twin() == 801
    assert DEVICE.launches_without_twin() > refused
    # The error is sticky, as on a device; the kernel is named.
    with pytest.raises(RuntimeError):
        torch.cuda.synchronize()
    DEVICE.cuda.cudasim_clear_errors()
    assert torch.ones(1, device="cuda").item() == 1
    assert "nobodys_kernel" in capfd.readouterr().err


def test_recurrent_networks():
    torch.manual_seed(0)
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        for bias in (True, False):
            model = kind(5, 7, num_layers=2, bias=bias, batch_first=True)
            x = torch.randn(3, 4, 5)
            gradients = []
            for device in ("cpu", "cuda"):
                model.zero_grad()
                model.to(device)
                output, _ = model(x.to(device))
                output.square().sum().backward()
                gradients.append([output.detach().cpu()])
                gradients[-1] += [p.grad.cpu() for p in model.parameters()]
            for a, b in zip(*gradients):
                assert torch.allclose(a, b, atol=1e-5), (kind, bias)
