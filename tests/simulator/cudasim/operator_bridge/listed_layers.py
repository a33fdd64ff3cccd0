# SPDX-License-Identifier: Apache-2.0
"""Items of the operator list: layers and operators."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.simulator.cudasim.operator_bridge.listed import difference, item, state_of


def leaf(*sizes, device, dtype=torch.float32):
    """Random numbers that want a gradient, the same on every device."""
    return torch.randn(*sizes).to(device, dtype).requires_grad_()


def with_gradients(result, *leaves):
    """The result and the gradients of its sum of squares."""
    values = result if isinstance(result, (tuple, list)) else (result,)
    loss = sum(v.float().square().sum() for v in values)
    return values, torch.autograd.grad(loss, leaves)


# --- Recurrent ----------------------------------------------------------------


def recurrent(kind, device, cudnn, **options):
    """Plain and packed sequences through a network of two layers."""
    with torch.backends.cudnn.flags(enabled=cudnn):
        model = kind(5, 6, num_layers=2, batch_first=True, **options)
        model = model.to(device)
        x = leaf(3, 7, 5, device=device)
        output, state = model(x)
        packed, packed_state = model(
            pack_padded_sequence(
                x, torch.tensor([7, 5, 2]), batch_first=True
            )
        )
        padded, _ = pad_packed_sequence(packed, batch_first=True)
        parts = [output, padded]
        for s in (state, packed_state):
            parts += list(s) if isinstance(s, tuple) else [s]
        sum(p.square().sum() for p in parts).backward()
        return parts, x.grad, state_of(model)


RECURRENT_WHY = "CUDA's fused cell adds gates and biases in another order"
CUDNN_WHY = "the CPU's networks round differently with and without a gradient"


@item("LSTM: 2 layers, bidirectional, packed; cuDNN", 1e-5, CUDNN_WHY)
def lstm(device):
    return recurrent(nn.LSTM, device, True, bidirectional=True)


@item("LSTM: the same; cuDNN off", 1e-5, RECURRENT_WHY)
def lstm_native(device):
    return recurrent(nn.LSTM, device, False, bidirectional=True)


@item("LSTM with projections; cuDNN", 1e-5, CUDNN_WHY)
def lstm_projected(device):
    return recurrent(nn.LSTM, device, True, proj_size=4)


@item("GRU: 2 layers, bidirectional, packed; cuDNN", 1e-5, CUDNN_WHY)
def gru(device):
    return recurrent(nn.GRU, device, True, bidirectional=True)


@item("GRU: the same; cuDNN off", 1e-5, RECURRENT_WHY)
def gru_native(device):
    return recurrent(nn.GRU, device, False, bidirectional=True)


@item("RNN (tanh), no bias; cuDNN", 1e-5, CUDNN_WHY)
def rnn(device):
    return recurrent(nn.RNN, device, True, bias=False)


# --- Convolution and normalisation ---------------------------------------------


def convolve(device, convolution, norm, shape, channels_last=None):
    """Two train steps, then evaluation."""
    model = nn.Sequential(convolution, norm, nn.ReLU()).to(device)
    x = torch.randn(*shape).to(device)
    if channels_last is not None:
        model = model.to(memory_format=channels_last)
        x = x.to(memory_format=channels_last)
    x.requires_grad_()
    results = []
    for _ in range(2):
        results.append(model(x))
        results[-1].square().mean().backward()
    if channels_last is not None:
        assert results[-1].is_contiguous(memory_format=channels_last)
    model.eval()
    return results, model(x), x.grad, state_of(model)


@item("Convolution 2d + BatchNorm")
def convolution_2d(device):
    return convolve(
        device,
        nn.Conv2d(3, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        (2, 3, 9, 9),
    )


@item("Convolution 2d + BatchNorm, channels last")
def convolution_channels_last(device):
    return convolve(
        device,
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        (2, 3, 9, 9),
        torch.channels_last,
    )


@item("Convolution grouped, depthwise, dilated + BatchNorm")
def convolution_grouped(device):
    return (
        convolve(
            device,
            nn.Conv2d(4, 8, 3, groups=2, dilation=2),
            nn.BatchNorm2d(8),
            (2, 4, 9, 9),
        ),
        convolve(
            device,
            nn.Conv2d(4, 4, 3, groups=4, bias=False),
            nn.BatchNorm2d(4),
            (2, 4, 9, 9),
        ),
    )


@item("Convolution transposed + BatchNorm")
def convolution_transposed(device):
    return convolve(
        device,
        nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1),
        nn.BatchNorm2d(6),
        (2, 4, 5, 5),
    )


@item("Convolution 1d and 3d + BatchNorm")
def convolution_1d_3d(device):
    return (
        convolve(device, nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), (2, 3, 11)),
        convolve(
            device, nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4), (2, 3, 5, 5, 5)
        ),
    )


# --- Attention -------------------------------------------------------------------


def attention_inputs(device, dtype, heads=(4, 4), lengths=(9, 9)):
    return (
        leaf(2, heads[0], lengths[0], 16, device=device, dtype=dtype),
        leaf(2, heads[1], lengths[1], 16, device=device, dtype=dtype),
        leaf(2, heads[1], lengths[1], 16, device=device, dtype=dtype),
    )


def attend(device, backend, dtype, masked=False, gqa=False):
    """Plain, causal, masked and grouped attention of one backend, with
    gradients; the CPU chooses for itself."""
    cases = [{}, {"is_causal": True}]
    if masked:
        mask = torch.zeros(9, 9)
        mask[:, 5] = float("-inf")
        cases.append({"attn_mask": mask.to(device, dtype)})
        cases.append({"attn_mask": torch.ones(9, 9).tril().bool().to(device)})
    results = []
    for case in cases:
        for grouped in (False, True) if gqa else (False,):
            q, k, v = attention_inputs(device, dtype, (4, 2 if grouped else 4))
            with sdpa_kernel(
                [backend] if device != "cpu" else list(BACKENDS.values())
            ):
                output = functional.scaled_dot_product_attention(
                    q, k, v, enable_gqa=grouped, **case
                )
            results.append(with_gradients(output, q, k, v))
    return results


BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@item("SDPA: default choice, float32")
def attention_default(device):
    q, k, v = attention_inputs(device, torch.float32)
    return [
        with_gradients(
            functional.scaled_dot_product_attention(q, k, v, **case), q, k, v
        )
        for case in ({}, {"is_causal": True})
    ]


@item(
    "SDPA: FLASH_ATTENTION, bf16: plain, causal, GQA",
    0.25,
    "one rounding on the device, several in the CPU's kernel: two units",
)
def attention_flash(device):
    return attend(device, BACKENDS["flash"], torch.bfloat16, gqa=True)


@item("SDPA: EFFICIENT_ATTENTION, float32: plain, causal, masks")
def attention_efficient(device):
    return attend(device, BACKENDS["efficient"], torch.float32, masked=True)


@item(
    "SDPA: CUDNN_ATTENTION, fp16: plain, causal, masks",
    0.015625,
    "one rounding on the device, several in the CPU's kernel: two units",
)
def attention_cudnn(device):
    return attend(device, BACKENDS["cuDNN"], torch.float16, masked=True)


@item("SDPA: MATH, float32: plain, causal, masks, GQA", 1e-5, "the CPU: flash")
def attention_math(device):
    return attend(
        device, BACKENDS["math"], torch.float32, masked=True, gqa=True
    )


def attention_with_dropout(backend, dtype):
    """Drops the same weights in forward and backward: with the mask that an
    identity as value shows, the CPU computes the rest."""
    torch.manual_seed(0)
    # From 2.12 on cuDNN takes multiples of 1/16 alone.
    size, p = 16, 5 / 16
    q, k = (
        torch.randn(2, 3, size, size, dtype=dtype, device="cuda")
        .requires_grad_()
        for _ in range(2)
    )
    eye = torch.eye(size, dtype=dtype, device="cuda").expand(2, 3, size, size)
    value = eye.contiguous().requires_grad_()
    with sdpa_kernel([backend]):
        output = functional.scaled_dot_product_attention(
            q, k, value, dropout_p=p
        )
    got = with_gradients(output, q, k, value)
    kept = (output.detach() != 0).cpu().double()
    assert abs(kept.mean().item() - (1 - p)) < 0.1
    cpu = [t.detach().cpu().double().requires_grad_() for t in (q, k, value)]
    weights = torch.softmax(cpu[0] @ cpu[1].transpose(2, 3) / size**0.5, -1)
    expected = with_gradients(weights * kept / (1 - p) @ cpu[2], *cpu)
    return difference(
        [t.double() for part in expected for t in part],
        [t.double() for part in got for t in part],
    )


@item(
    "SDPA: dropout 5/16 in all four, with gradients",
    0.05,
    "half precision against double; float32 alone: below 1e-5",
    measures_itself=True,
)
def attention_dropout():
    exact = [
        attention_with_dropout(BACKENDS[name], torch.float32)
        for name in ("efficient", "math")
    ]
    assert max(exact) < 1e-5, exact
    return max(
        exact
        + [
            attention_with_dropout(BACKENDS[name], torch.float16)
            for name in ("flash", "cuDNN")
        ]
    )


@item("nn.MultiheadAttention, nn.TransformerEncoder", 1e-5, "fast path")
def encoder(device):
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2
    ).to(device)
    x = leaf(2, 5, 16, device=device)
    train = with_gradients(model(x), x, *model.parameters())
    with torch.inference_mode():
        return train, model.eval()(x.detach())


# --- Operators -------------------------------------------------------------------


@item("Embedding and embedding bag: sum, mean, max; sparse=False")
def embedding(device):
    results = []
    ids = torch.randint(0, 20, (17,)).to(device)
    offsets = torch.tensor([0, 4, 4, 11]).to(device)
    for mode in ("sum", "mean", "max"):
        bag = nn.EmbeddingBag(20, 6, mode=mode).to(device)
        results.append(with_gradients(bag(ids, offsets), bag.weight))
    table = nn.Embedding(20, 6, padding_idx=3).to(device)
    results.append(with_gradients(table(ids.view(1, -1)), table.weight))
    return results


@item("Indexing, index_put with accumulation")
def indexing(device):
    x = leaf(6, 7, 3, device=device)
    rows = torch.tensor([0, 5, 5, 2, 0]).to(device)
    mask = (torch.arange(7) % 2 == 0).to(device)
    results = [
        with_gradients(x[rows], x),
        with_gradients(x[:, mask], x),
        with_gradients(x[rows, :, rows % 3], x),
        with_gradients(x.index_select(1, rows), x),
        with_gradients(x.take_along_dim(rows.view(-1, 1, 1), 0), x),
    ]
    y = x.detach().clone()
    y.index_put_((rows,), torch.ones(5, 7, 3).to(device), accumulate=True)
    z = x.detach().clone()
    z[rows[1:4], 0] = 9.0
    z.index_add_(0, rows, y[:5])
    z.index_copy_(1, rows[1:2], y[:, :1])
    z.masked_fill_(z > 1, 0.5)
    return results, y, z, x.masked_select(x > 0)


@item("Sort, topk, kthvalue, argsort, unique, nonzero, bincount")
def ordering(device):
    x = torch.randn(5, 33).to(device)
    n = torch.randint(0, 9, (40,)).to(device)
    return (
        x.sort(dim=1),
        x.sort(dim=0, descending=True, stable=True),
        x.topk(4),
        x.kthvalue(3),
        x.argsort(0),
        x.median(1),
        n.unique(return_inverse=True, return_counts=True),
        n.unique_consecutive(return_counts=True),
        x.gt(0).nonzero(),
        n.bincount(),
        torch.searchsorted(x.sort().values, x),
        torch.isin(n, n[:3]),
    )


@item("Scatter, gather, scatter_reduce, segment sums")
def scattering(device):
    x = leaf(4, 9, device=device)
    index = torch.randint(0, 9, (4, 9)).to(device)
    base = torch.zeros(4, 9).to(device)
    results = [
        with_gradients(x.gather(1, index), x),
        with_gradients(base.scatter_add(1, index, x), x),
        base.scatter(1, index[:, :1], 7.0),
    ]
    for reduce in ("sum", "mean", "amax", "prod"):
        results.append(
            with_gradients(base.scatter_reduce(1, index, x, reduce), x)
        )
    return results


@item("FFT: fft, rfft, irfft, fft2, stft, istft")
def fourier(device):
    x = leaf(3, 64, device=device)
    window = torch.hann_window(16).to(device)
    spectrum = torch.stft(x, 16, window=window, return_complex=True)
    return (
        torch.fft.fft(x),
        torch.fft.fft2(x),
        torch.fft.rfft(x),
        with_gradients(torch.fft.irfft(torch.fft.rfft(x)), x),
        with_gradients(spectrum.abs(), x),
        torch.istft(spectrum, 16, window=window, length=64),
    )


@item(
    "Least squares",
    1e-3,
    "CUDA factors by QR, the CPU with pivots",
)
def least_squares(device):
    a = torch.randn(2, 6, 4).to(device)
    return torch.linalg.lstsq(a, torch.randn(2, 6, 3).to(device)).solution


@item("Linear algebra: cholesky, solve, lu, qr, svd, eigh, inv, det, pinv")
def linear_algebra(device):
    a = torch.randn(2, 6, 6).to(device)
    b = torch.randn(2, 6, 3).to(device)
    spd = a @ a.mT + 6 * torch.eye(6).to(device)
    return (
        torch.linalg.cholesky(spd),
        torch.cholesky_solve(b, torch.linalg.cholesky(spd)),
        torch.linalg.solve(a, b),
        torch.linalg.lu_factor(a),
        torch.linalg.qr(a),
        torch.linalg.svdvals(a),
        torch.linalg.svd(a),
        torch.linalg.eigh(spd),
        torch.linalg.inv(a),
        torch.linalg.slogdet(a),
        torch.linalg.solve_triangular(a.triu(), b, upper=True),
        torch.linalg.pinv(a),
        torch.linalg.matrix_exp(a),
    )


@item("grid_sample, affine_grid, interpolate, fold, pooling")
def sampling(device):
    x = leaf(2, 3, 8, 8, device=device)
    theta = torch.randn(2, 2, 3).to(device)
    grid = functional.affine_grid(theta, (2, 3, 6, 6), align_corners=False)
    results = [grid]
    for mode in ("bilinear", "nearest", "bicubic"):
        results.append(
            with_gradients(
                functional.grid_sample(x, grid, mode, align_corners=False), x
            )
        )
    for mode in ("bilinear", "nearest", "bicubic", "area"):
        results.append(
            with_gradients(
                functional.interpolate(x, scale_factor=1.5, mode=mode), x
            )
        )
    columns = functional.unfold(x, 3)
    results.append(with_gradients(functional.fold(columns, 8, 3), x))
    results.append(with_gradients(functional.max_pool2d(x, 3, 2, 1), x))
    results.append(with_gradients(functional.adaptive_avg_pool2d(x, 3), x))
    return results


@item("CTC loss, cdist, cumsum, cumprod, einsum, logsumexp")
def assorted(device):
    logits = leaf(12, 2, 5, device=device)
    targets = torch.randint(1, 5, (2, 4)).to(device)
    ctc = functional.ctc_loss(
        logits.log_softmax(2),
        targets,
        torch.tensor([12, 10]),
        torch.tensor([4, 3]),
    )
    x, y = leaf(4, 6, device=device), leaf(5, 6, device=device)
    return (
        with_gradients(ctc, logits),
        with_gradients(torch.cdist(x, y), x, y),
        with_gradients(x.cumsum(1), x),
        with_gradients(x.cumprod(0), x),
        with_gradients(torch.einsum("ik,jk->ij", x, y), x, y),
        with_gradients(x.logsumexp(1), x),
        torch.histc(x.detach(), 5),
        torch.bucketize(x.detach(), torch.linspace(-1, 1, 4).to(device)),
    )


@item("torchvision.ops: nms, roi_align, deform_conv2d")
def vision_operators(device):
    import torchvision  # pylint: disable=import-outside-toplevel

    corners = torch.rand(30, 2) * 20
    boxes = torch.cat([corners, corners + torch.rand(30, 2) * 9 + 1], 1)
    boxes, scores = boxes.to(device), torch.rand(30).to(device)
    x = leaf(1, 4, 24, 24, device=device)
    rois = torch.cat([torch.zeros(30, 1).to(device), boxes], 1)
    weight = torch.randn(4, 4, 3, 3).to(device)
    offset = torch.randn(1, 18, 22, 22).to(device)
    return (
        torchvision.ops.nms(boxes, scores, 0.3),
        with_gradients(torchvision.ops.roi_align(x, rois, 3), x),
        with_gradients(torchvision.ops.roi_pool(x, rois, 3), x),
        with_gradients(torchvision.ops.deform_conv2d(x, offset, weight), x),
    )
