# SPDX-License-Identifier: Apache-2.0
"""A large model of thin layers, by the usual means: checkpointed segments,
mixed precision, four cards, inputs in chunks. Then without splitting: the same
model on one card that is too small for it.

Runs under stratalloc with four devices; prints a section for each.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import stratalloc

MIB = 1 << 20


class Thin(nn.Module):
    """A linear layer whose matrix is a product of two: x -> x @ a @ b."""

    def __init__(self, inner, outer, rank):
        super().__init__()
        self.a = nn.Parameter(torch.randn(inner, rank) / inner ** .5)
        self.b = nn.Parameter(torch.randn(rank, outer) / rank ** .5)

    def forward(self, x):
        return x @ self.a @ self.b


class Tower(nn.Sequential):
    """Thin layers with a ReLU behind each but the last."""

    def __init__(self, *sizes):
        parts = []
        for inner, outer in zip(sizes, sizes[1:]):
            parts += [Thin(inner, outer, max(inner // 2, 1)), nn.ReLU()]
        super().__init__(*parts[:-1])


def mib(size):
    return f"{size / MIB:.2f} MiB"


def held(category, device=0):
    return sum(row.bytes for row in stratalloc.holders(device=device).rows
               if row.category == category)


def training(model):
    """Segments keep their inputs alone; half precision is the operators'."""
    segments = [nn.Sequential(*part) for part in
                (list(model)[:4], list(model)[4:])]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.)
    x = torch.randn(256, 512, device="cuda")
    y = torch.randint(0, 16, (256,), device="cuda")
    for checkpointed in (False, True):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = x
            for segment in segments:
                out = (checkpoint(segment, out, use_reentrant=False)
                       if checkpointed else segment(out))
            loss = nn.functional.cross_entropy(out, y)
        kept = held("activation")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print("segments", "with" if checkpointed else "without",
              f"checkpoints: {mib(kept)} wait for backward,",
              "loss is finite" if loss.isfinite() else "loss is NOT finite")
    print("optimizer state:", mib(held("optimizer_state")))


@torch.no_grad()
def spread(model, x, want):
    """A layer on each card; each card's owner is told by its own numbers."""
    layers = [layer for layer in model if isinstance(layer, Thin)]
    for device, layer in enumerate(layers):
        layer.to(f"cuda:{device}")
    for number, layer in enumerate(layers):
        x = layer(x.to(layer.a.device))
        x = torch.relu(x) if number + 1 < len(layers) else x
    print("four cards:",
          ", ".join(mib(held("parameter", device)) for device in range(4)),
          "of parameters;", "the result is the CPU's" if torch.allclose(
              x.cpu(), want, atol=1e-4) else "ANOTHER result")


@torch.no_grad()
def streamed():
    """Rows in chunks: the peak is a chunk's, whatever the number of rows."""
    model = Thin(256, 10, 128).cuda()
    rows, parts = torch.randn(10000, 256), []
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for chunk in rows.split(500):
        parts.append(model(chunk.cuda()).cpu())
    added = stratalloc.peak().total - before
    print(f"{tuple(torch.cat(parts).shape)} in chunks: at most {mib(added)}",
          f"at once, all rows are {mib(rows.nbytes)}")


@torch.no_grad()
def unsplit():
    """No line of the model says where a layer is: what is cold is away."""
    model = Tower(*[1024] * 8)
    x = torch.randn(32, 1024)
    want = model(x)
    size = sum(parameter.nbytes for parameter in model.parameters())
    got = model.cuda()(x.cuda()).cpu()
    card = torch.cuda.get_device_properties(0).total_memory
    print(f"{mib(size)} of parameters on one card of {mib(card)}:",
          "the result is the CPU's," if torch.allclose(got, want, atol=1e-3)
          else "ANOTHER result,",
          mib(stratalloc.stats()["tiers"]["bytes_evicted"]), "moved out")


def main():
    torch.manual_seed(0)
    sizes = 512, 256, 128, 64, 16
    training(Tower(*sizes).cuda())
    model, x = Tower(*sizes), torch.randn(32, 512)
    spread(model, x, model(x).detach())
    del model
    streamed()
    unsplit()


if __name__ == "__main__":
    main()
