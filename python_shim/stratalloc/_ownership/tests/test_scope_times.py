# SPDX-License-Identifier: Apache-2.0
"""Calls of each scope and the host's time in them; recomputations; names."""

import gc

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402


def scopes(root):
    return {row["owner"][len(root) + 1:]: row
            for row in stratalloc.report()["scopes"]
            if row["owner"].split(".")[0].split("/")[0] == root}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def net(name):
    return type(name, (nn.Sequential,), {})(Layer(), Layer()).cuda()


def test_calls_and_nodes_are_counted_and_times_nest():
    model = net("Timed")
    x = torch.randn(8, 64, device="cuda")
    for _ in range(3):
        model(x).sum().backward()
    found = scopes("Timed")
    # Moving to the device enters each module once, and making the root, which
    # alone had its name by then, once more.
    assert [found[name]["entered"] for name in ("", "0", "0.linear")] == [5, 4, 4]
    # tanh; the product and its transposed weight, and the weight's gradient.
    assert [found[name]["backward_nodes"]
            for name in ("0", "1", "0.linear")] == [3, 3, 9]
    whole = found[""]
    for kind in ("ns", "backward_ns"):
        inclusive = "time_ns" if kind == "ns" else kind
        own = sum(row["own_" + kind] for row in found.values())
        assert whole[inclusive] == own > 0
        assert (found["0"][inclusive] == found["0"]["own_" + kind]
                + found["0.linear"]["own_" + kind])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_is_below_its_layer(reentrant):
    root = f"Again{reentrant}"
    model = net(root)
    x = torch.randn(256, 64, device="cuda", requires_grad=True)
    y = x
    for layer in model:
        y = checkpoint(layer, y, use_reentrant=reentrant)
    before = {name for name in scopes(root) if "recomputation" in name}
    assert before == set()
    y.sum().backward()
    found = scopes(root)
    again = {name: row["entered"] for name, row in found.items()
             if "recomputation" in name}
    assert again == {f"{name}/recomputation": 1
                     for name in ("0", "1", "0.linear", "1.linear")}
    layers = {row["owner"]: row for row in stratalloc.report()["layers"]
              if row["owner"].startswith(root)
              and row["category"] in ("activation", "temporary")}
    # What is computed again is tanh's result and, in linear, the product.
    size = 256 * 64 * 4
    for name in ("0", "1"):
        row = layers[f"{root}.{name}/recomputation"]
        assert row["allocated"] == size and row["live"] == 0
    # Backward of what was computed again is the layer's own.
    assert found["0"]["backward_nodes"] > 0
    assert all(row["backward_nodes"] == 0 for name, row in found.items()
               if "recomputation" in name)


def test_more_names_than_are_kept_are_one_scope():
    functions = stratalloc._native.stack.functions()
    assert stratalloc.report()["scopes_not_interned"] == 0
    before = functions.intern("kept before")
    for i in range(1_000_000):
        functions.intern(f"step {i}")
    with stratalloc.scope("too late"):
        late = torch.empty(1000, device="cuda")
    row, = [row for row in stratalloc.holders().rows
            if row.name == "(other scopes)"]
    assert row.bytes == 4096 and late is not None
    assert functions.intern("kept before") == before
    # A model that comes now has no names of its own, and runs.
    model = net("Late")
    model(torch.randn(2, 64, device="cuda")).sum().backward()
    stratalloc.evict(model)
    model(torch.randn(2, 64, device="cuda"))
    del model, late
    gc.collect()
    report = stratalloc.report()
    assert report["scopes_not_interned"] > 700_000
    assert (sum(row["device"] for row in report["layers"])
            == torch.cuda.memory_allocated())


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
