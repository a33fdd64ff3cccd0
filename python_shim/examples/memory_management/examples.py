# SPDX-License-Identifier: Apache-2.0
"""Five programs with models that are larger than the memory they get.

    stratalloc run --simulate 64MiB examples.py              # all five
    stratalloc run --simulate 64MiB examples.py sentiment    # one of them

Each compares what it computes with a model that nobody manages.
"""

import argparse
import copy
import random
import statistics
import time

import torch
from torch import nn

from stratalloc.compat.memory_management import (MemoryConfig, MemoryManager,
                                                 auto_manage_model)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MIB = 1 << 20


def megabytes(model):
    return sum(one.numel() * one.element_size()
               for one in model.parameters()) / MIB


def where(manager):
    """A line about what a manager's modules have where."""
    system = manager.get_memory_summary()["system"]
    tiers = ", ".join(f"{system[tier] / MIB:.0f} MiB {tier}"
                      for tier in ("device", "host", "disk"))
    return f"{tiers}; {system['total_offloads']} offloads"


def tower(width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


@torch.no_grad()
def same(model, plain, batch):
    """What the managed model computes is what the other does on the CPU."""
    mine, theirs = model(batch.to(DEVICE)).cpu(), plain(batch)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    return float((mine - theirs).abs().max())


def basic():
    """One call, and the model runs where it would not fit."""
    model = tower(2048, 7)
    plain = copy.deepcopy(model)
    manager = auto_manage_model(model)
    model.to(DEVICE)
    print(f"  {megabytes(model):.0f} MiB of weights: {where(manager)}")
    error = same(model, plain, torch.randn(8, 2048))
    print(f"  after a pass: {where(manager)}; off by {error:g}")
    manager.cleanup()


def custom_configuration():
    """Two parts of a program, each with thresholds of its own."""
    careful = MemoryConfig.for_low_memory(memory_check_interval=0.02)
    relaxed = MemoryConfig(gpu_offload_threshold=0.9, offload_batch_size=2,
                           eager_offload_on_wrap=False)
    encoder, head = tower(1024, 6), tower(1024, 2)
    plain = copy.deepcopy(nn.Sequential(encoder, head))
    managers = [auto_manage_model(encoder, careful),
                auto_manage_model(head, relaxed)]
    model = nn.Sequential(encoder, head).to(DEVICE)
    same(model, plain, torch.randn(8, 1024))
    for name, manager in zip(("encoder", "head"), managers):
        print(f"  {name}: {where(manager)}")
    careful.gpu_offload_threshold = 0.3  # holds from the next look on
    print(f"  encoder from now on: out at {careful.gpu_offload_threshold:.0%}, "
          f"until {careful.gpu_reload_threshold:.0%}")
    for manager in managers:
        manager.cleanup()


def manual_control():
    """A layer leaves and returns when the program says so."""
    manager = MemoryManager(MemoryConfig(eager_offload_on_wrap=False))
    layer = nn.Linear(1024, 2048).to(DEVICE)
    before = layer.weight.detach().cpu().clone()
    layer = manager.wrap_module(layer, module_id="projection")
    out = layer.offload_all()
    info = layer.get_memory_info()
    print(f"  {info['module_id']}: {out / MIB:.0f} MiB left, "
          f"{info['offloaded_parameters']} of {info['total_parameters']} "
          "parameters are away")
    back = layer.load_all()
    assert torch.equal(layer.weight.detach().cpu(), before)
    print(f"  {back / MIB:.0f} MiB returned, bit for bit")
    manager.cleanup()


def transformer():
    """Training steps of an encoder; layers of several kinds are managed."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0,
                                       batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    plain = copy.deepcopy(model)
    manager = MemoryManager(MemoryConfig.for_low_memory())
    manager.wrap_model(model, layer_types=[nn.Linear, nn.MultiheadAttention])
    manager.start()
    model.to(DEVICE)
    print(f"  {megabytes(model):.0f} MiB of weights: {where(manager)}")
    batch, losses = torch.randn(4, 16, 512), []
    for one, device in ((model, DEVICE), (plain, "cpu")):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = one(batch.to(device)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    print(f"  3 steps: {where(manager)}; loss {losses[0]:.6f}, on the CPU "
          f"{losses[1]:.6f}")
    assert abs(losses[0] - losses[1]) < 1e-3
    manager.cleanup()


GOOD = "bright kind warm clever fresh lovely gentle sunny".split()
BAD = "dull rude cold clumsy stale dreadful harsh gloomy".split()
PLAIN = "the film was with plot and a cast of scenes music".split()
WORDS = {word: i for i, word in enumerate(GOOD + BAD + PLAIN)}


def review(chance):
    """(numbers of its words, is it a good one)"""
    good = chance.random() < 0.5
    words = chance.choices(PLAIN, k=9) + chance.choices(GOOD if good else BAD,
                                                        k=3)
    chance.shuffle(words)
    return [WORDS[word] for word in words], int(good)


class Sentiment(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0,
                                           batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2,
                                             enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, numbers):
        return self.head(self.encoder(self.words(numbers)).mean(dim=1))


def sentiment():
    """Trains a classifier of reviews, then times one review after another."""
    torch.manual_seed(1)
    chance = random.Random(1)
    model = Sentiment()
    manager = auto_manage_model(model, MemoryConfig.for_high_performance())
    model.to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(15):
        numbers, goods = zip(*(review(chance) for _ in range(32)))
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            model(torch.tensor(numbers, device=DEVICE)),
            torch.tensor(goods, device=DEVICE)).backward()
        optimizer.step()
    model.eval()
    right, took = 0, []
    with torch.no_grad():
        for _ in range(60):
            numbers, good = review(chance)
            began = time.perf_counter()
            answer = int(model(torch.tensor([numbers], device=DEVICE)).argmax())
            took.append(1000 * (time.perf_counter() - began))
            right += answer == good
    print(f"  {right} of 60 right; {statistics.median(took):.1f} ms for a "
          f"review, 95 % within {statistics.quantiles(took, n=20)[-1]:.1f} ms")
    print(f"  {where(manager)}")
    manager.cleanup()


EXAMPLES = {"basic": basic, "configuration": custom_configuration,
            "manual": manual_control, "transformer": transformer,
            "sentiment": sentiment}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="example",
                        help=f"of {', '.join(EXAMPLES)}; all by default")
    names = parser.parse_args().names or list(EXAMPLES)
    unknown = [name for name in names if name not in EXAMPLES]
    if unknown:
        parser.error(f"no example {unknown[0]!r}; there are "
                     f"{', '.join(EXAMPLES)}")
    for name in names:
        print(f"{name}: {EXAMPLES[name].__doc__}")
        EXAMPLES[name]()


if __name__ == "__main__":
    main()
