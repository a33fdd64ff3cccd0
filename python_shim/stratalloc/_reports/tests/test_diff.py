# SPDX-License-Identifier: Apache-2.0
"""mark(), diff() and leaks(): what grows, and what only warms up."""

import gc
import random

import pytest

from stratalloc._native import core as _core
from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc._native import _scopes  # noqa: E402

SIZE = 64
OUTPUT = 16 * SIZE * 4  # bytes of a batch's result
WEIGHTS = SIZE * SIZE * 4 + 512  # of a layer, with its bias


def net(name):
    """A model whose root name nobody else uses: rows outlive tests."""
    return type(name, (nn.Sequential,), {})(
        nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)).cuda()


def batch():
    return torch.randn(16, SIZE, device="cuda")


def named(rows, root):
    return {(row.name, row.category): row for row in rows
            if row.name.split(".")[0] == root}


def test_diff_by_module_is_that_by_owner():
    before = stratalloc.mark()
    model = net("Spelt")
    after = stratalloc.mark()
    earlier = stratalloc.diff(before, after, by="module")
    assert earlier.rows and earlier.rows == stratalloc.diff(
        before, after, by="owner").rows
    assert earlier.text() == stratalloc.diff(before, after).text()
    with pytest.raises(ValueError, match="owner or site"):
        stratalloc.diff(before, after, by="category")
    del model


def test_a_diff_adds_up_and_names_who_grew():
    model = net("Grew")
    gc.collect()
    before = stratalloc.mark("before")
    kept = [model(batch()).detach() for _ in range(3)]
    kept.append(torch.empty(5000, dtype=torch.uint8, device="cuda"))
    gc.collect()
    grown = stratalloc.diff(before)
    after = stratalloc.mark()
    assert grown.total == after.total - before.total == 3 * OUTPUT + 5120
    assert grown.total == sum(row.bytes for row in grown.rows)
    row = named(grown.rows, "Grew")["Grew.2", "activation"]
    assert (row.bytes, row.count, row.tier) == (3 * OUTPUT, 3, "all")
    assert grown["at"] == "before to now" and dict(grown) == grown.to_dict()
    assert str(grown).startswith("+17 KiB from before to now")
    stratalloc.evict(model)
    assert not stratalloc.diff(after).rows, "it only moved"
    del kept
    gc.collect()
    shrunk = stratalloc.diff(after)
    assert shrunk.total == -grown.total and shrunk.rows[0].bytes < 0
    assert stratalloc.diff(before, before).rows == []


def test_two_owners_of_one_name_are_both_in_a_mark():
    """As a class may be called what bytes of no scope are."""
    loose = batch()
    _scopes.push(_scopes.intern("(no scope)"), 0, 0)
    mine = batch()
    _scopes.pop()
    before = stratalloc.mark()
    assert before.total == stratalloc.stats()["live"]
    del loose, mine
    gc.collect()
    gone, = stratalloc.diff(before).rows
    assert (gone.bytes, gone.count) == (-2 * OUTPUT, -2)


@pytest.mark.parametrize("wrong", [None, 3, "before", {}])
def test_what_is_no_mark(wrong):
    with pytest.raises(TypeError, match="stratalloc.mark"):
        stratalloc.diff(wrong)


def train(model, steps, every, found=None):
    """`every(step, result)` after each forward."""
    optimizer = torch.optim.AdamW(model.parameters())  # its state is lazy
    for step in range(steps):
        result = model(batch())
        every(step, result)
        result.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if found is not None:
            found.step()


def test_who_holds_is_told_without_the_whole_report(monkeypatch):
    """It sums up every path there ever was, which is of no use here."""
    keep = torch.empty(1000, device="cuda")
    layers = stratalloc.report()["layers"]
    monkeypatch.setattr(_core, "report", None)
    held = {(row["owner"], row["category"]): (row["live"], row["blocks"])
            for row in layers if row["live"]}
    assert held and stratalloc.mark().held == held
    for at, column in (("now", "live"), ("peak", "at_peak")):
        found = stratalloc.holders(at=at)
        assert {row.name for row in found.rows} == {
            row["owner"] for row in layers if row[column]}
        assert found.total == sum(row[column] for row in layers)
    del keep


def test_a_list_that_keeps_results_is_a_leak(caplog):
    kept = []
    with stratalloc.leaks(steps=24) as found:
        train(net("Keeps"), 24, lambda step, result: kept.append(result))
    rows = named(found.rows, "Keeps")
    assert rows["Keeps.2", "activation"].per_step == OUTPUT
    assert found and found.seen == 24
    # What the graph of each result keeps is its layers'.
    assert {name for name, _ in rows} <= {"Keeps", "Keeps.0", "Keeps.1",
                                          "Keeps.2"}
    assert "Keeps" in caplog.text and "activation" in caplog.text
    assert found["rows"][0]["per_step"] > 0
    assert "not recorded" in found.sites


def test_a_leak_of_every_fifth_step():
    kept = []
    with stratalloc.leaks(steps=60) as found:
        train(net("Logs"), 60, lambda step, result: step % 5 or kept.append(
            result.detach()))
    leak, = found.rows
    assert (leak.name, leak.category) == ("Logs.2", "activation")
    assert leak.per_step == OUTPUT // 5 and leak.bytes == leak.count * OUTPUT


def test_a_warm_up_and_a_full_cache_are_none():
    cache, warm = {}, []

    def every(step, result):
        cache[step % 5] = result.detach()
        if step < 6:
            warm.append(result.detach())

    with stratalloc.leaks(steps=24) as found:
        train(net("Warms"), 24, every)
    assert not found, str(found)
    assert str(found) == "nothing grows over 24 steps"


def test_what_goes_up_and_down_is_none():
    kept, draw = [], random.Random(3)

    def every(step, result):
        kept.append(result.detach())
        if draw.random() < .4:
            kept.clear()

    with stratalloc.leaks(steps=40) as found:
        train(net("Waves"), 40, every)
    assert not found, str(found)


def test_spikes_that_grow_are_none():
    kept = []

    def every(step, result):
        kept.clear()
        if step % 5 == 4:  # the last step, too
            kept.extend(result.detach().clone() for _ in range(step))

    with stratalloc.leaks(steps=40) as found:
        train(net("Spikes"), 40, every)
    assert not found, str(found)


def test_a_leak_that_starts_after_the_warm_up():
    kept = []
    with stratalloc.leaks(steps=24) as found:
        train(net("Late"), 24, lambda step, result: step < 8 or kept.append(
            result.detach()))
    assert list(named(found.rows, "Late")) == [("Late.2", "activation")]


def test_a_new_owner_in_each_step():
    """The first of its class has no number: it is the one that trains."""
    kept = []

    def every(step, result):
        kept.append(net("Anew"))
        kept[-1](batch())

    with stratalloc.leaks(steps=24) as found:
        train(net("Anew"), 24, every)
    assert [(row.name, row.category, row.per_step) for row in found.rows] == [
        ("Anew#n.0", "parameter", WEIGHTS), ("Anew#n.2", "parameter", WEIGHTS)]


def test_one_of_two_of_a_class_is_named_with_its_number():
    kept, other, leaking = [], net("Twice"), net("Twice")
    other(batch())
    with stratalloc.leaks(steps=24) as found:
        train(leaking, 24, lambda step, result: kept.append(result.detach()))
    assert [row.name for row in found.rows] == ["Twice#2.2"]


def test_owners_that_have_nothing_in_common():
    kept = []

    def every(step, result):
        with stratalloc.scope(f"kept in step {step}", category="buffer"):
            kept.append(batch())

    with stratalloc.leaks(steps=24) as found:
        train(net("Unlike"), 24, every)
    row, = found.rows
    assert (row.name, row.category) == ("(many owners)", "unknown")
    assert row.per_step == OUTPUT and row.bytes == row.count * OUTPUT


def test_a_hook_that_keeps_its_outputs():
    model, kept = net("Hooked"), []
    model[1].register_forward_hook(
        lambda module, inputs, output: kept.append(output.detach().clone()))
    with stratalloc.leaks(steps=16) as found:
        train(model, 16, lambda *_: None)
    assert any(row.bytes >= 6 * OUTPUT for row in named(
        found.rows, "Hooked").values()), str(found)


def test_a_loop_without_an_optimizer():
    model, kept = net("Serves"), []
    found = stratalloc.leaks(steps=16, on="call")
    with torch.no_grad():
        for _ in range(16):
            kept.append(model(batch()))
            found.step()
    assert list(named(found.rows, "Serves")) == [("Serves.2", "activation")]
    found.stop()


def test_too_few_steps_tell_nothing():
    found = stratalloc.leaks(on="call")
    found.step()
    assert not found and "1 steps seen" in str(found)
    for wrong in ({"steps": 11}, {"steps": "many"}, {"on": "epoch"}):
        with pytest.raises(ValueError, match="stratalloc.leaks"):
            stratalloc.leaks(**wrong)


def test_nobody_is_listened_to_after_the_end():
    with stratalloc.leaks() as found:
        train(net("Ends"), 2, lambda *_: None)
    train(net("EndsToo"), 2, lambda *_: None)
    assert found.seen == 2


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
