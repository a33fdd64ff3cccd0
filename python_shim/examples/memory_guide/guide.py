# SPDX-License-Identifier: Apache-2.0
"""PyTorch's means against running out of memory, one after another, each with
what the allocator below says of it.

Runs under stratalloc; prints a section for each mean.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import stratalloc

MIB = 1 << 20
WIDTH, BATCH = 256, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.checkpointed = False

    def forward(self, x):
        for block in self.blocks:
            x = (checkpoint(block, x, use_reentrant=False)
                 if self.checkpointed else block(x))
        return x


def mib(size):
    return f"{size / MIB:.2f} MiB"


def held(category):
    return sum(row.bytes for row in stratalloc.holders().rows
               if row.category == category)


def peaks(model, x):
    """The peak is counted, not sampled, and it has names."""
    torch.cuda.reset_peak_memory_stats()
    model(x).square().mean().backward()
    most = stratalloc.peak()
    assert most.total == torch.cuda.max_memory_allocated()
    by_category = {}
    for row in most.rows:
        by_category[row.category] = (
            by_category.get(row.category, 0) + row.bytes)
    print("peak of a step:", mib(most.total))
    for category, size in sorted(by_category.items(), key=lambda i: -i[1]):
        if size >= MIB // 4:
            print(f"  {category}: {mib(size)}")
    model.zero_grad()


def checkpoints(model, x):
    """What a checkpoint spares is read before backward; what it makes again is
    its layers', in scopes of their own."""
    for model.checkpointed in (False, True):
        torch.cuda.reset_peak_memory_stats()
        loss = model(x).square().mean()
        kept = held("activation")
        loss.backward()
        print("checkpoints", "on:" if model.checkpointed else "off:",
              mib(kept), "of activations wait for backward, peak",
              mib(torch.cuda.max_memory_allocated()))
        model.zero_grad()
    again = sum(row["allocated"] for row in stratalloc.report()["layers"]
                if row["owner"].startswith("Net.blocks.0")
                and row["owner"].endswith("/recomputation"))
    print("  allocated again for Net.blocks.0:", mib(again))


def loader(model):
    """Pinned batches are torch's pinned memory; what arrives is an input."""
    data = TensorDataset(torch.randn(4 * BATCH, WIDTH))
    seen = 0
    for batch, in DataLoader(data, batch_size=BATCH, pin_memory=True,
                             num_workers=2):
        assert batch.is_pinned()  # more is, as far as the workers are ahead
        x = batch.to("cuda", non_blocking=True)
        with torch.inference_mode():
            model(x)
        seen = max(seen, held("input"))
    print("pinned by the loader:", mib(batch.nbytes), "a batch; inputs on the",
          "card:", mib(seen))


@torch.no_grad()
def fraction():
    """A model that is larger than its share of the card runs in it."""
    total = torch.cuda.get_device_properties(0).total_memory
    model = Net(layers=20).cuda()
    x = torch.randn(64, WIDTH, device="cuda")
    want = model(x).cpu()
    size = sum(parameter.nbytes for parameter in model.parameters())
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(.25)
    before = stratalloc.stats()["tiers"]["bytes_evicted"]
    same = torch.equal(model(x).cpu(), want)
    moved = stratalloc.stats()["tiers"]["bytes_evicted"] - before
    print(f"{mib(size)} of parameters in a quarter of {mib(total)}:",
          "the same result," if same else "ANOTHER result,",
          mib(moved), "moved out")
    reports = []
    with stratalloc.on_oom(reports.append):
        try:
            torch.empty(total // 2, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            print("refused:", reports[0].verdict.kind)
            print(" ", reports[0].suggestions[0].text)
    torch.cuda.set_per_process_memory_fraction(1.0)


def batch():
    """A search by failing goes on after each failure; parameters and optimizer
    state make room for a larger batch before one is refused."""
    model = nn.Sequential(nn.Linear(16, 4096), nn.ReLU(),
                          nn.Linear(4096, 1)).cuda()
    low, high, refused = 1, 4096, 0
    while low < high:
        middle = (low + high + 1) // 2
        try:
            model(torch.randn(middle, 16, device="cuda")).sum().backward()
            low = middle
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            high, refused = middle - 1, refused + 1
        model.zero_grad()
        torch.cuda.empty_cache()
    model(torch.randn(low, 16, device="cuda")).sum().backward()
    model.zero_grad()
    print(f"largest batch: {low} rows, {refused} larger ones refused;",
          "half of the card after them:",
          "served" if stratalloc.explain("32MiB").fits else "refused")


def main():
    torch.manual_seed(0)
    model = Net().cuda()
    x = torch.randn(BATCH, WIDTH, device="cuda")
    peaks(model, x)
    checkpoints(model, x)
    loader(model)
    del model, x
    fraction()
    batch()


if __name__ == "__main__":
    main()
