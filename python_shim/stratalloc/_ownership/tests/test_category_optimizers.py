# SPDX-License-Identifier: Apache-2.0
"""The category and owner of every kind of optimizer state."""

import gc

import pytest

from stratalloc import simulate

simulate.load("128MiB")

import torch  # noqa: E402

from python_shim.testing.accounts import rows, sums, total  # noqa: E402,F401
from device_nets import WEIGHT, block_bytes, data, net  # noqa: E402
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402


def test_state_that_is_made_in_the_constructor():
    """Adagrad's sums: known to be state while the constructor makes them."""
    model = net("Adagrad")
    model(data()).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    optimizer = torch.optim.Adagrad(model.parameters())
    expected = {(str(i), "optimizer_state"): WEIGHT for i in range(2)}
    found = {key: size for key, size in rows("Adagrad").items()
             if key[1] == "optimizer_state"}
    assert found == expected
    at_peak = stratalloc.peak()
    assert sum(row.bytes for row in at_peak.rows
               if row.category == "optimizer_state") == 2 * WEIGHT
    assert rows("Optimizer.Adagrad") == {}
    optimizer.step()
    del optimizer
    gc.collect()
    assert total("Adagrad", "optimizer_state") == 0


class Constructed(torch.optim.Optimizer):
    """One of nobody's list; makes state in its constructor, or fails there."""

    def __init__(self, parameters, fails=False):
        super().__init__(parameters, {})
        self.loose = torch.ones(256, device="cuda")
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.zeros_like(parameter)
        if fails:
            raise KeyError("planted")

    def step(self, closure=None):
        self.temporary = torch.ones(128, device="cuda")


class Derived(Constructed):
    def __init__(self, parameters):
        super().__init__(parameters)
        self.more = torch.ones(128, device="cuda")


def test_state_of_an_optimizer_nobody_knows():
    model = net("Custom")
    optimizer = Derived(model.parameters())
    assert total("Custom", "optimizer_state") == 2 * WEIGHT
    # What is no parameter's is the optimizer's.
    assert rows("Optimizer.Derived") == {("", "optimizer_state"): 1024 + 512}
    with pytest.raises(KeyError, match="planted"):
        Constructed(model.parameters(), fails=True)
    gc.collect()
    assert total("Custom", "optimizer_state") == 2 * WEIGHT
    model(data()).sum().backward()
    optimizer.step()
    assert total("Custom", "optimizer_state") == 2 * WEIGHT


def test_a_first_step_after_somebody_looked():
    """Gradients are there and state is not: a look is no step."""
    model = net("LookedAt")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    stratalloc.watch(model, optimizer)
    model(data()).sum().backward()
    stratalloc.watch(model, optimizer)
    stratalloc.report()
    torch.cuda.reset_peak_memory_stats()
    seen = []

    def look(optimizer, args, kwargs):
        # A post hook runs outside of our frame and inside of torch's step.
        seen.append({(row.name, row.category): row.bytes
                     for row in stratalloc.peak().rows})

    optimizer.register_step_post_hook(look)
    optimizer.step()
    by = {}
    for (name, category), size in seen[0].items():
        if name.startswith(("LookedAt", "Optimizer")):
            by[category] = by.get(category, 0) + size
    assert by.get("optimizer_state", 0) >= 4 * WEIGHT, by
    assert total("LookedAt", "optimizer_state") == 4 * WEIGHT


class Lookahead(torch.optim.Optimizer):
    """Wraps another: shares its groups, has slow weights of its own."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups = inner.param_groups
        self.defaults = {}
        self.state = {}

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    self.state[parameter] = {
                        "slow": parameter.detach().clone()}
                slow = self.state[parameter]["slow"]
                slow.lerp_(parameter, .5)
                parameter.copy_(slow)


def test_an_optimizer_around_another():
    model = net("Lookahead2")
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), foreach=False))
    for _ in range(2):
        model(data()).sum().backward()
        optimizer.step()
    assert total("Lookahead2", "optimizer_state") == 2 * 3 * WEIGHT
    assert rows("Optimizer") == {}


class Nothing(torch.optim.Optimizer):
    """Does not call Optimizer.__init__, and has nothing."""

    def __init__(self, inner):
        self.inner = inner


def test_an_optimizer_without_anything():
    model = net("Nothing2", layers=1)
    optimizer = Nothing(torch.optim.SGD(model.parameters(), lr=.1))
    assert optimizer.inner is not None
    stratalloc.report()


def test_lbfgs_keeps_lists():
    model = net("Lbfgs", layers=1)
    x = data()
    optimizer = torch.optim.LBFGS(model.parameters(), history_size=3,
                                  max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state[model[0].weight]
    kept = [each for value in state.values()
            for each in (value if isinstance(value, list) else [value])
            if isinstance(each, torch.Tensor) and each.is_cuda]
    assert len(kept) > 3
    assert total("Lbfgs", "optimizer_state") == block_bytes(*kept)


def test_a_scaler_and_its_state():
    model = net("ScaledNet")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.float16):
            loss = model(data()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert total("ScaledNet", "parameter") == 2 * WEIGHT
    assert total("ScaledNet", "gradient") == 2 * WEIGHT
    assert total("ScaledNet", "optimizer_state") == 4 * WEIGHT


def test_optimizers_are_made_while_somebody_asks():
    """What another thread does between two steps of an answer, this one does
    in the middle of it: optimizers are made, and states filled."""
    model = net("Asked")
    optimizer = torch.optim.SGD(model.parameters(), .1, momentum=.9)
    model(data()).sum().backward()
    optimizer.step()
    made, filled = [], []

    class Groups(list):
        def __iter__(self):
            made.append(torch.optim.SGD(model.parameters(), .1))
            return super().__iter__()

    class Fills(dict):
        def values(self):
            filled.append(data())
            state[f"more {len(filled)}"] = filled[-1]
            return super().values()

    optimizer.param_groups = Groups(optimizer.param_groups)
    state = optimizer.state[model[0].weight]
    state["inside"] = Fills()
    for _ in range(2):
        stratalloc.holders(by="tensor")
    assert len(made) > 1 and len(filled) > 1
    assert total("Asked", "optimizer_state") >= sum(
        one.nbytes for one in filled[:2])
