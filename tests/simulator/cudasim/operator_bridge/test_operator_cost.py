# SPDX-License-Identifier: Apache-2.0
"""What operators cost on the virtual clock.

The operations counted must be those torch.utils.flop_counter counts; the time
must be near what the card's data sheet says.
"""

import ctypes

from tests.simulator.cudasim.operator_bridge import simulated

sim = simulated.load("1GiB", CUDASIM_CARD="h200")

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

cuda = sim.cuda
cuda.cudasim_virtual_total.restype = ctypes.c_double
cuda.cudasim_card_figure.restype = ctypes.c_double
cuda.cudasim_virtual_now_ns.restype = ctypes.c_int64
cuda.cudasim_device_virtual_ns.restype = ctypes.c_int64


def total(name):
    return cuda.cudasim_virtual_total(name.encode())


def figure(name):
    return cuda.cudasim_card_figure(0, name.encode())


def now():
    torch.cuda.synchronize()
    return cuda.cudasim_virtual_now_ns()


def counted(step):
    """Operations by torch's counter and by the device, of one call."""
    before = total("flops")
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops(), total("flops") - before


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


MODELS = {
    "linear": lambda: (
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
        torch.randn(32, 64),
    ),
    "linear without bias, three dimensions": lambda: (
        nn.Linear(64, 48, bias=False),
        torch.randn(4, 7, 64),
    ),
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, groups=4),
        ),
        torch.randn(2, 3, 32, 24),
    ),
    "transposed convolution": lambda: (
        nn.Sequential(
            nn.ConvTranspose2d(6, 4, 3, stride=2),
            nn.Conv2d(4, 5, 1),
        ),
        torch.randn(2, 6, 9, 7),
    ),
    "convolution in one and three dimensions": lambda: (
        nn.Sequential(
            nn.Conv1d(4, 8, 5), nn.Unflatten(2, (4, 3, 5)), nn.Conv3d(8, 2, 2)
        ),
        torch.randn(3, 4, 64),
    ),
    "attention": lambda: (Attention(64, 4), torch.randn(2, 33, 64)),
    "recurrent": lambda: (nn.GRU(16, 24, batch_first=True),
                          torch.randn(2, 5, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_torchs_own_count(name):
    torch.manual_seed(0)
    model, data = MODELS[name]()
    model.cuda()
    data = data.cuda().requires_grad_()

    def step():
        result = model(data)
        result = result[0] if isinstance(result, tuple) else result
        result.square().sum().backward()

    # cuDNN's networks are one operator each, which the flop counter does not
    # know.
    with torch.backends.cudnn.flags(enabled=False):
        torch_count, device_count = counted(step)
    assert torch_count > 0
    assert device_count == torch_count


def test_products_of_every_form():
    a = torch.randn(5, 6, device="cuda")
    b = torch.randn(6, 7, device="cuda")
    c = torch.randn(5, 7, device="cuda")
    batched = torch.randn(3, 5, 6, device="cuda")
    other = torch.randn(3, 6, 7, device="cuda")
    out = torch.empty(5, 7, device="cuda")

    def step():
        torch.mm(a, b)
        torch.mm(a, b, out=out)
        torch.addmm(c, a, b)
        torch.bmm(batched, other)
        torch.baddbmm(torch.zeros(3, 5, 7, device="cuda"), batched, other)
        torch.matmul(batched, b)

    torch_count, device_count = counted(step)
    assert device_count == torch_count == 2 * 5 * 6 * 7 * (3 + 3 + 3 + 3)


def test_bytes_of_plain_operators():
    gigabytes = figure("hbm_gb_per_s") * figure("memory_efficiency")
    kernel = figure("kernel_ns")
    x = torch.zeros(1 << 22, device="cuda")
    y = torch.zeros(1 << 22, device="cuda")
    table = torch.zeros(1 << 16, 64, device="cuda")
    picked = torch.arange(4096, device="cuda")
    row = torch.zeros(64, device="cuda")
    mib = 1 << 20

    for step, expected in (
        (lambda: x + y, 48 * mib),
        (lambda: x.add_(y), 48 * mib),
        (lambda: torch.add(x, y, out=y), 48 * mib),
        (lambda: x.fill_(1), None),
        (lambda: x.sum(), 16 * mib),
        (lambda: functional.embedding(picked, table), 2 * mib + 8 * 4096),
        (lambda: table[picked], 2 * mib + 8 * 4096),
        (lambda: table + row, 32 * mib),
    ):
        before = total("kernel_ns")
        step()
        spent = total("kernel_ns") - before
        if expected is not None:
            assert spent == pytest.approx(kernel + expected / gigabytes,
                                          abs=1)


def test_the_type_picks_the_peak():
    a = torch.randn(256, 256, device="cuda")

    def busy(x):
        before = total("compute_busy_ns")
        x @ x
        return total("compute_busy_ns") - before

    peaks = {t: figure(t + "_tflops") * figure("compute_efficiency")
             for t in ("fp64", "fp32", "tf32", "bf16")}
    work = 2 * 256**3 / 1000
    assert busy(a.double()) == pytest.approx(work / peaks["fp64"], rel=1e-6)
    assert busy(a) == pytest.approx(work / peaks["fp32"], rel=1e-6)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        traffic = 3 * 256**2 * 4 / (4800 * 0.85)
        assert busy(a) == pytest.approx(max(work / peaks["tf32"], traffic),
                                        rel=1e-6)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_a_transformer_layer_is_near_the_roofline():
    """Linear layers of a Llama-like block: forward, against a data sheet."""
    width, hidden, tokens = 512, 1408, 256
    shapes = [(width, width)] * 4 + [(width, hidden)] * 2 + [(hidden, width)]
    layers = [nn.Linear(i, o, bias=False, device="cuda",
                        dtype=torch.bfloat16) for i, o in shapes]
    data = {n: torch.zeros(tokens, n, device="cuda", dtype=torch.bfloat16)
            for n in (width, hidden)}
    start = now()
    before = total("operators")
    with torch.no_grad():
        for layer in layers:
            layer(data[layer.in_features])
    launches = total("operators") - before
    spent = now() - start
    # By hand: H200, 989 TFLOP/s dense, 4.8 TB/s.
    ideal = 0
    for i, o in shapes:
        flops = 2 * tokens * i * o
        traffic = 2 * (tokens * i + i * o + tokens * o)
        ideal += max(flops / 989.5e3, traffic / 4800)
    assert launches == len(shapes)
    # Small products: latency and the caller's own time dominate.
    per_operator = figure("kernel_ns") + figure("operator_ns")
    assert ideal < spent < 2 * ideal + len(shapes) * per_operator


def test_a_copy_overlaps_with_computing():
    pinned = torch.zeros(16 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.float64)
    side = torch.cuda.Stream()

    def run(stream):
        start = now()
        with torch.cuda.stream(stream):
            device.copy_(pinned, non_blocking=True)
        for _ in range(4):
            a @ a
        return now() - start

    one_after_the_other = run(torch.cuda.current_stream())
    beside = run(side)
    copy = (16 << 20) / figure("pcie_up_gb_per_s")
    compute = 4 * 2 * 1024**3 / (67e3 * figure("compute_efficiency"))
    assert one_after_the_other > copy + compute
    assert max(copy, compute) < beside < 0.8 * one_after_the_other


def test_events_measure_it():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a = torch.randn(512, 512, device="cuda", dtype=torch.float64)
    torch.cuda.synchronize()
    start.record()
    a @ a
    end.record()
    end.synchronize()
    compute = 2 * 512**3 / (67e3 * figure("compute_efficiency"))
    wanted = compute + figure("kernel_ns")
    # The stream was idle: what the caller spends between the calls counts too.
    caller = figure("operator_ns") + 2000
    assert wanted <= 1e6 * start.elapsed_time(end) <= wanted + caller
