# SPDX-License-Identifier: Apache-2.0
"""Operators that take half precision, at sizes that take some milliseconds.

`CASES` maps the name of an operator to a function of `inputs(dtype)`: x, y
(512 x 512, above 0.1 and below 1), image (4 x 32 x 32 x 32), volume
(2 x 8 x 8 x 16 x 16), heads (2 x 4 x 128 x 64), index (512 rows). Import after
`simulated.load()`.
"""

# pylint: disable=unnecessary-lambda
import torch
from torch.nn import functional as F


def inputs(dtype):
    torch.manual_seed(0)

    def made(*sizes):
        values = (torch.rand(sizes) * 0.8 + 0.1).to(dtype)
        return values.to("cuda").requires_grad_()

    return (
        made(512, 512),
        made(512, 512),
        made(4, 32, 32, 32),
        made(2, 8, 8, 16, 16),
        made(2, 4, 128, 64),
        torch.arange(512).flip(0).to("cuda"),
    )


def _module(make):
    """A module's call: made once per type."""
    made = {}

    def call(value):
        if value.dtype not in made:
            torch.manual_seed(0)
            made[value.dtype] = make().to(value)
        return made[value.dtype](value)

    return call


_lstm = _module(lambda: torch.nn.LSTM(64, 64, 2))
_gru = _module(lambda: torch.nn.GRU(64, 64))
_encoder = _module(
    lambda: torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0)
)


@torch.no_grad()
def _encoded(*inputs_):
    """The fused operator of inference."""
    heads = inputs_[4].detach()
    if heads.dtype not in _fused:
        torch.manual_seed(0)
        _fused[heads.dtype] = torch.nn.TransformerEncoderLayer(
            64, 4, 128, batch_first=True
        ).to(heads).eval()
    return _fused[heads.dtype](heads[0])


_fused = {}


def _stepped(make):
    """A step of an optimizer over two parameters."""

    def call(x, y, *_):
        parameters = [t.detach().clone().requires_grad_() for t in (x, y)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        make(parameters).step()
        return ()

    return call


def _clip(x, y, *_):
    parameters = [t.detach().clone().requires_grad_() for t in (x, y)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return torch.nn.utils.clip_grad_norm_(parameters, 1.0).detach()


def _unscaled(x, y, *_):
    scale = torch.ones((), device="cuda")
    found = torch.zeros(1, device="cuda")
    values = [x.detach().clone(), y.detach().clone()]
    torch._amp_foreach_non_finite_check_and_unscale_(values, found, scale)
    return ()


O = torch.optim

CASES = {
    # Products.
    "mm": lambda x, y, *_: x @ y,
    "mm of a transposed": lambda x, y, *_: x @ y.t(),
    "mm of 1 row": lambda x, y, *_: x[:1] @ y,
    "mm of 640 x 2048 x 1024": lambda x, y, *_: (
        x.detach().view(-1)[:1].expand(640, 2048).contiguous()
        @ y.detach().view(-1)[:1].expand(2048, 1024).contiguous()
    ),
    "mm, out=": lambda x, y, *_: torch.mm(
        x.detach(), y.detach(), out=torch.empty_like(x)
    ),
    "addmm": lambda x, y, *_: torch.addmm(x, x, y, beta=0.5, alpha=2),
    "addmm_": lambda x, y, *_: x.detach().clone().addmm_(x.detach(), y.detach()),
    "linear": lambda x, y, *_: F.linear(x, y, y[0]),
    "bmm": lambda x, y, i, v, h, n: h[0] @ h[1].transpose(1, 2),
    "baddbmm": lambda x, y, *_: torch.baddbmm(
        x.view(8, 64, 512)[:, :, :64], x.view(8, 64, 512), y.view(8, 512, 64)
    ),
    "addbmm": lambda x, y, *_: torch.addbmm(
        x[:64, :64], x.view(8, 64, 512), y.view(8, 512, 64)
    ),
    "matmul, broadcast": lambda x, y, i, v, h, n: h @ x[:64, :64],
    "mv": lambda x, y, *_: torch.mv(x, y[0]),
    "addmv": lambda x, y, *_: torch.addmv(x[0], x, y[0]),
    "dot": lambda x, y, *_: torch.dot(x.view(-1), y.view(-1)),
    "outer": lambda x, y, *_: torch.outer(x[0], y[0]),
    "einsum": lambda x, y, i, v, h, n: torch.einsum("bhqd,bhkd->bhqk", h, h),
    "bilinear": lambda x, y, *_: F.bilinear(
        x[:, :32], y[:, :32], x[:, :256].reshape(128, 32, 32)
    ),
    "matrix_exp": lambda x, y, *_: torch.matrix_exp(x[:64, :64]),
    "cdist": lambda x, y, *_: torch.cdist(x.detach(), y.detach()),
    "multi_head_attention": lambda x, y, i, v, h, n: F.multi_head_attention_forward(
        h[0].transpose(0, 1).reshape(128, 4, 64),
        h[0].transpose(0, 1).reshape(128, 4, 64),
        h[0].transpose(0, 1).reshape(128, 4, 64),
        64, 4, x[:192, :64], x[0, :192], None, None, False, 0.0,
        y[:64, :64], y[0, :64],
    ),  # fmt: skip
    "TransformerEncoderLayer": lambda x, y, i, v, h, n: _encoder(h[0]),
    "LSTM": lambda x, y, i, v, h, n: _lstm(h[0])[0],
    "GRU": lambda x, y, i, v, h, n: _gru(h[0])[0],
    "TransformerEncoderLayer, eval": _encoded,
    "_addmm_activation": lambda x, y, *_: torch._addmm_activation(
        x[0].detach(), x.detach(), y.detach()
    ),
    # Convolutions.
    "conv1d": lambda x, y, i, v, h, n: F.conv1d(
        x.view(4, 64, 1024), y.view(-1)[: 64 * 64 * 3].view(64, 64, 3)
    ),
    "conv2d": lambda x, y, i, v, h, n: F.conv2d(
        i, x.view(-1)[: 32 * 32 * 9].view(32, 32, 3, 3), x[0, :32], padding=1
    ),
    "conv2d, groups": lambda x, y, i, v, h, n: F.conv2d(
        i, x.view(-1)[: 32 * 8 * 9].view(32, 8, 3, 3), groups=4
    ),
    "conv2d, depthwise": lambda x, y, i, v, h, n: F.conv2d(
        i, x.view(-1)[: 32 * 9].view(32, 1, 3, 3), groups=32
    ),
    "conv2d, dilation": lambda x, y, i, v, h, n: F.conv2d(
        i, x.view(-1)[: 32 * 32 * 9].view(32, 32, 3, 3), dilation=2
    ),
    "conv2d, channels last": lambda x, y, i, v, h, n: F.conv2d(
        i.contiguous(memory_format=torch.channels_last),
        x.view(-1)[: 32 * 32 * 9].view(32, 32, 3, 3),
    ),
    "conv_tbc": lambda x, y, i, v, h, n: torch.conv_tbc(
        x.view(1024, 4, 64), y.view(-1)[: 64 * 64 * 3].view(3, 64, 64), x[0, :64]
    ),
    "conv3d": lambda x, y, i, v, h, n: F.conv3d(
        v, x.view(-1)[: 8 * 8 * 27].view(8, 8, 3, 3, 3)
    ),
    "conv_transpose1d": lambda x, y, i, v, h, n: F.conv_transpose1d(
        x.view(4, 64, 1024), y.view(-1)[: 64 * 64 * 3].view(64, 64, 3)
    ),
    "conv_transpose2d": lambda x, y, i, v, h, n: F.conv_transpose2d(
        i, x.view(-1)[: 32 * 32 * 9].view(32, 32, 3, 3), stride=2
    ),
    "conv_transpose3d": lambda x, y, i, v, h, n: F.conv_transpose3d(
        v, x.view(-1)[: 8 * 8 * 27].view(8, 8, 3, 3, 3)
    ),
    # Attention.
    "attention": lambda x, y, i, v, h, n: F.scaled_dot_product_attention(h, h, h),
    "attention, causal": lambda x, y, i, v, h, n: F.scaled_dot_product_attention(
        h, h, h, is_causal=True
    ),
    "attention, mask": lambda x, y, i, v, h, n: F.scaled_dot_product_attention(
        h, h, h, attn_mask=x[:128, :128].detach()
    ),
    "attention, dropout": lambda x, y, i, v, h, n: F.scaled_dot_product_attention(
        h, h, h, dropout_p=0.1
    ),
    # Normalisation and loss.
    "layer_norm": lambda x, y, *_: F.layer_norm(x, (512,), y[0], y[1]),
    "rms_norm": lambda x, y, *_: F.rms_norm(x, (512,), y[0]),
    "group_norm": lambda x, y, i, v, h, n: F.group_norm(i, 4, x[0, :32]),
    "instance_norm": lambda x, y, i, v, h, n: F.instance_norm(i),
    "batch_norm": lambda x, y, i, v, h, n: F.batch_norm(
        i, None, None, x[0, :32], y[0, :32], training=True
    ),
    "local_response_norm": lambda x, y, i, v, h, n: F.local_response_norm(i, 3),
    "normalize": lambda x, y, *_: F.normalize(x),
    "softmax": lambda x, y, *_: x.softmax(1),
    "softmax over rows": lambda x, y, *_: x.softmax(0),
    "softmax in float": lambda x, y, *_: x.softmax(1, dtype=torch.float32),
    "log_softmax": lambda x, y, *_: x.log_softmax(1),
    "logsumexp": lambda x, y, *_: x.logsumexp(1),
    "cross_entropy": lambda x, y, i, v, h, n: F.cross_entropy(x, n),
    "nll_loss": lambda x, y, i, v, h, n: F.nll_loss(x, n),
    "mse_loss": lambda x, y, *_: F.mse_loss(x, y),
    "smooth_l1_loss": lambda x, y, *_: F.smooth_l1_loss(x, y),
    "l1_loss": lambda x, y, *_: F.l1_loss(x, y),
    "binary_cross_entropy": lambda x, y, *_: F.binary_cross_entropy(
        x, y.detach()
    ),
    "binary_cross_entropy_with_logits": lambda x, y, *_: (
        F.binary_cross_entropy_with_logits(x, y)
    ),
    "kl_div": lambda x, y, *_: F.kl_div(x, y, reduction="batchmean"),
    "cosine_similarity": lambda x, y, *_: F.cosine_similarity(x, y),
    # Tables and indices.
    "embedding": lambda x, y, i, v, h, n: F.embedding(n, x),
    "embedding_bag": lambda x, y, i, v, h, n: F.embedding_bag(n.view(64, 8), x),
    "index": lambda x, y, i, v, h, n: x[n],
    "index_select": lambda x, y, i, v, h, n: x.index_select(1, n),
    "index_add": lambda x, y, i, v, h, n: x.index_add(0, n, y),
    "index_put": lambda x, y, i, v, h, n: x.index_put((n,), y, accumulate=True),
    "gather": lambda x, y, i, v, h, n: x.gather(0, n.expand(512, 512)),
    "scatter_add": lambda x, y, i, v, h, n: x.scatter_add(
        0, n.expand(512, 512), y
    ),
    "scatter_reduce": lambda x, y, i, v, h, n: x.detach().scatter_reduce(
        0, n.expand(512, 512), y.detach(), "amax"
    ),
    "masked_select": lambda x, y, *_: x.masked_select(x > 0.5),
    "masked_fill": lambda x, y, *_: x.masked_fill(x > 0.5, 0),
    "where": lambda x, y, *_: torch.where(x > 0.5, x, y),
    # Reductions, orders and running values.
    "sum": lambda x, y, *_: x.sum(),
    "sum of columns": lambda x, y, *_: x.sum(0),
    "mean": lambda x, y, *_: x.mean(1),
    "prod": lambda x, y, *_: x.prod(1),
    "var": lambda x, y, *_: x.var(1),
    "std": lambda x, y, *_: x.std(0),
    "norm": lambda x, y, *_: x.norm(),
    "norm of order 3": lambda x, y, *_: x.norm(3, dim=1),
    "norm in float": lambda x, y, *_: torch.linalg.vector_norm(
        x, dtype=torch.float32
    ),
    "amax": lambda x, y, *_: x.amax(1),
    "max": lambda x, y, *_: x.max(1)[0],
    "argmax": lambda x, y, *_: x.argmax(1),
    "aminmax": lambda x, y, *_: x.detach().aminmax(),
    "any": lambda x, y, *_: x.any(1),
    "median": lambda x, y, *_: x.median(1)[0],
    "kthvalue": lambda x, y, *_: x.kthvalue(3, 1)[0],
    "mode": lambda x, y, *_: x.detach()[:64].mode(1)[0],
    "sort": lambda x, y, *_: x.sort(1)[0],
    "topk": lambda x, y, *_: x.topk(8, 1)[0],
    "unique": lambda x, y, *_: x.detach().unique(),
    "cumsum": lambda x, y, *_: x.cumsum(1),
    "cumprod": lambda x, y, *_: x.cumprod(1),
    "cummax": lambda x, y, *_: x.cummax(1)[0],
    "logcumsumexp": lambda x, y, *_: x.logcumsumexp(1),
    "renorm": lambda x, y, *_: x.renorm(2, 0, 1.0),
    "histc": lambda x, y, *_: x.detach().histc(50),
    "bucketize": lambda x, y, *_: torch.bucketize(x.detach(), y.detach()[0]),
    "multinomial": lambda x, y, *_: x.detach().multinomial(4),
    "dist": lambda x, y, *_: x.dist(y),
    # Pooling, sampling and layout.
    "max_pool2d": lambda x, y, i, v, h, n: F.max_pool2d(i, 2),
    "avg_pool2d": lambda x, y, i, v, h, n: F.avg_pool2d(i, 2),
    "adaptive_avg_pool2d": lambda x, y, i, v, h, n: F.adaptive_avg_pool2d(i, 7),
    "avg_pool3d": lambda x, y, i, v, h, n: F.avg_pool3d(v, 2),
    "max_pool3d": lambda x, y, i, v, h, n: F.max_pool3d(v, 2),
    "interpolate, nearest": lambda x, y, i, v, h, n: F.interpolate(
        i, scale_factor=2
    ),
    "interpolate, bilinear": lambda x, y, i, v, h, n: F.interpolate(
        i, scale_factor=2, mode="bilinear"
    ),
    "interpolate, bicubic": lambda x, y, i, v, h, n: F.interpolate(
        i, scale_factor=2, mode="bicubic"
    ),
    "grid_sample": lambda x, y, i, v, h, n: F.grid_sample(
        i, x.view(-1)[: 4 * 32 * 32 * 2].view(4, 32, 32, 2), align_corners=True
    ),
    "pixel_shuffle": lambda x, y, i, v, h, n: F.pixel_shuffle(i, 2),
    "unfold": lambda x, y, i, v, h, n: F.unfold(i, 3),
    "fold": lambda x, y, i, v, h, n: F.fold(
        i.view(4, 128, 256), 32, 2, stride=2
    ),
    "pad": lambda x, y, i, v, h, n: F.pad(i, (1, 1, 1, 1), mode="reflect"),
    "contiguous": lambda x, y, *_: x.t().contiguous(),
    "cat": lambda x, y, *_: torch.cat([x, y]),
    "flip": lambda x, y, *_: x.flip(0),
    "roll": lambda x, y, *_: x.roll(3, 1),
    "tril": lambda x, y, *_: x.tril(),
    "to float": lambda x, y, *_: x.to(torch.float32, copy=True),
    # One element at a time.
    **{
        name: lambda x, y, *_, f=getattr(torch, name): f(x)
        for name in (
            "abs neg exp expm1 log log1p log2 sqrt rsqrt sin cos tan asin atan "
            "sinh cosh tanh asinh atanh sigmoid erf erfc erfinv logit lgamma "
            "digamma i0 sinc round floor frac reciprocal square sign isfinite "
            "nan_to_num"
        ).split()
    },
    **{
        name: lambda x, y, *_, f=getattr(F, name): f(x)
        for name in (
            "relu relu6 gelu silu mish elu selu celu softplus softsign "
            "leaky_relu hardtanh hardswish hardsigmoid logsigmoid tanhshrink "
            "softshrink glu"
        ).split()
    },
    "gelu, tanh": lambda x, y, *_: F.gelu(x, approximate="tanh"),
    "prelu": lambda x, y, *_: F.prelu(x, y[0]),
    **{
        name: lambda x, y, *_, f=getattr(torch, name): f(x, y)
        for name in (
            "add sub mul div pow atan2 hypot fmod remainder maximum fmax "
            "copysign xlogy logaddexp eq lt"
        ).split()
    },
    "floor_divide": lambda x, y, *_: x.detach() // y.detach(),
    "nextafter": lambda x, y, *_: torch.nextafter(x.detach(), y.detach()),
    "heaviside": lambda x, y, *_: torch.heaviside(x.detach(), y.detach()),
    "ldexp": lambda x, y, *_: torch.ldexp(x.detach(), y.detach()),
    "frexp": lambda x, y, *_: torch.frexp(x.detach()),
    "igamma": lambda x, y, *_: torch.igamma(x.detach(), y.detach()),
    "polygamma": lambda x, y, *_: torch.polygamma(1, x),
    "lerp": lambda x, y, *_: torch.lerp(x, y, 0.3),
    "clamp": lambda x, y, *_: x.clamp(0.3, 0.6),
    "addcmul": lambda x, y, *_: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y, *_: torch.addcdiv(x, x, y, value=0.5),
    # Random values.
    "dropout": lambda x, y, *_: F.dropout(x, 0.2),
    "bernoulli": lambda x, y, *_: x.detach().bernoulli(),
    "normal_": lambda x, y, *_: x.detach().clone().normal_(),
    "uniform_": lambda x, y, *_: x.detach().clone().uniform_(),
    "exponential_": lambda x, y, *_: x.detach().clone().exponential_(),
    "log_normal_": lambda x, y, *_: x.detach().clone().log_normal_(),
    "cauchy_": lambda x, y, *_: x.detach().clone().cauchy_(),
    "geometric_": lambda x, y, *_: x.detach().clone().geometric_(0.5),
    "rrelu": lambda x, y, *_: F.rrelu(x, training=True),
    # Lists and optimizers.
    "_foreach_add": lambda x, y, *_: torch._foreach_add(
        [x.detach(), y.detach()], [y.detach(), x.detach()]
    ),
    "_foreach_norm": lambda x, y, *_: torch._foreach_norm(
        [x.detach(), y.detach()]
    ),
    "_foreach_tanh": lambda x, y, *_: torch._foreach_tanh(
        [x.detach(), y.detach()]
    ),
    "clip_grad_norm_": _clip,
    "GradScaler's unscale": _unscaled,
    "SGD": _stepped(lambda p: O.SGD(p, 0.1, momentum=0.9)),
    "SGD, fused": _stepped(lambda p: O.SGD(p, 0.1, momentum=0.9, fused=True)),
    "AdamW": _stepped(O.AdamW),
    "AdamW, fused": _stepped(lambda p: O.AdamW(p, fused=True)),
    "Adagrad": _stepped(O.Adagrad),
    "RMSprop": _stepped(O.RMSprop),
    "Adafactor": _stepped(O.Adafactor),
}
