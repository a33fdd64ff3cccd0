# SPDX-License-Identifier: Apache-2.0
"""holders(), peak(), watch(), annotate(), and who pays for backward."""

import contextlib
import threading

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from python_shim.testing.accounts import rows, sums, total  # noqa: E402,F401
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402

BATCH, SIZE = 32, 256
ACTIVATION = BATCH * SIZE * 4
WEIGHT = SIZE * SIZE * 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x):
        return torch.relu(self.linear(x))


def net(name, layers=3):
    """A model whose root name nobody else uses: rows outlive tests."""
    return type(name, (nn.Sequential,), {})(
        *[Layer() for _ in range(layers)]).to("cuda")


class ByHand:
    """What is said on paper, against the accounts and against torch."""

    def __init__(self):
        self.before = torch.cuda.memory_allocated()

    def expect(self, at, owned, others=0):
        """`owned`: bytes of (path below the model, category), no row more.

        Everything on the device is theirs, `others`' or older than the test,
        so no byte is in no row.
        """
        device = (torch.cuda.memory_allocated() if at == "now"
                  else torch.cuda.max_memory_allocated())
        assert rows("ByHand", at) == owned
        assert device == self.before + sum(owned.values()) + others


def test_three_layers_by_hand():
    """Every byte of a step, as derived on paper.

    x is (32, 256) float32: 32 KiB. A layer is r = relu(y), y = x W', W (256,
    256): 256 KiB. All rows below are sums of these two sizes.
    """
    paper = ByHand()
    model = net("ByHand")
    weights = {(f"{i}.linear", "parameter"): WEIGHT for i in range(3)}
    paper.expect("now", weights)

    # Forward. A layer keeps r, which relu's backward and the next matmul share;
    # y dies with the layer's forward. Most is there when the last relu has made
    # its r: the last y has outlived the linear module that made it, and of r
    # nobody knows whether it will outlive its layer.
    torch.cuda.reset_peak_memory_stats()
    x = torch.randn(BATCH, SIZE, device="cuda")
    out = model(x)
    kept = weights | {("", "input"): x.nbytes}
    paper.expect("now", kept | {
        (str(i), "activation"): ACTIVATION for i in range(3)})
    paper.expect("peak", kept | {
        ("0", "activation"): ACTIVATION, ("1", "activation"): ACTIVATION,
        ("2.linear", "activation"): ACTIVATION,
        ("2", "temporary"): ACTIVATION})

    # Backward, last layer to first. A relu gives y's gradient, out of r, which
    # is let go then; the matmul W's, and but for the first layer its input's.
    # Most is there when the first layer's matmul has made the last gradient:
    # out of y's of the same layer, which is the one activation left but for
    # out, which we hold.
    gradient = torch.ones_like(out)  # made outside of any scope: nobody's
    torch.cuda.reset_peak_memory_stats()
    out.backward(gradient)
    kept |= {(f"{i}.linear", "gradient"): WEIGHT for i in range(3)}
    kept |= {("2", "activation"): out.nbytes}
    paper.expect("now", kept, gradient.nbytes)
    paper.expect("peak", kept | {("0", "activation"): ACTIVATION},
                 gradient.nbytes)

    # A step makes for each weight, one after the other: sqrt(exp_avg_sq), its
    # quotient, and holds the quotient of the weight before until the name gets
    # another. Its step counters are on the host.
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    of_the_step = 3 * WEIGHT
    # The first one makes the states too, and whose each is, is known at its end.
    states = {(f"{i}.linear", "optimizer_state"): 2 * WEIGHT for i in range(3)}
    paper.expect("peak", kept,
                 gradient.nbytes + of_the_step + sum(states.values()))
    assert rows("Optimizer", "peak") == {
        ("Adam", "optimizer_state"): sum(states.values()),
        ("Adam", "temporary"): of_the_step}
    paper.expect("now", kept | states, gradient.nbytes)
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    paper.expect("peak", kept | states, gradient.nbytes + of_the_step)
    assert rows("Optimizer", "peak") == {("Adam", "temporary"): of_the_step}
    paper.expect("now", kept | states, gradient.nbytes)
    assert rows("Optimizer") == {}

    optimizer.zero_grad()
    del out, gradient
    paper.expect("now", weights | states | {("", "input"): x.nbytes})


def test_backward_belongs_to_the_layer():
    model = net("Backward")
    x = torch.randn(BATCH, SIZE, device="cuda", requires_grad=True)
    seen = []
    # Inside of the graph, while layer 1's nodes run.
    model[1].linear.weight.register_hook(
        lambda grad: seen.append(torch.empty(4096, device="cuda")))
    model(x).sum().backward()
    found = rows("Backward")
    assert found["1.linear", "gradient"] == WEIGHT
    assert found["1.linear", "activation"] == seen[0].nbytes == 16384
    # The input's gradient is where the input is.
    assert found["", "gradient"] == found["", "input"] == x.nbytes


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_belongs_to_the_layer(reentrant):
    model = net("Checked%d" % reentrant)
    x = torch.randn(BATCH, SIZE, device="cuda", requires_grad=True)
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    name = "Checked%d" % reentrant
    made = {(row["owner"], row["category"]): row["blocks_allocated"]
            for row in stratalloc.report()["layers"]}
    # A result for each forward, and one for its recomputation.
    for i in range(3):
        for path in (f"{name}.{i}.linear", f"{name}.{i}.linear/recomputation"):
            assert made[path, "temporary"] == 1, made
        assert total(name, "gradient") == 3 * WEIGHT + x.grad.nbytes
    assert not total(name, "activation") + total(name, "temporary")


def test_a_graph_of_a_thread_that_is_gone():
    model = net("Threaded")
    x = torch.randn(BATCH, SIZE, device="cuda")
    made = []
    thread = threading.Thread(target=lambda: made.append(model(x)))
    thread.start()
    thread.join()
    before = stratalloc.report()["nodes_without_scope"]
    made.pop().sum().backward()
    assert stratalloc.report()["nodes_without_scope"] == before
    assert {f"{i}.linear" for i in range(3)} == {
        name for name, what in rows("Threaded") if what == "gradient"}


def test_double_backward_belongs_to_the_layer():
    model = net("Twice")
    x = torch.randn(BATCH, SIZE, device="cuda", requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
    assert total("Twice", "activation") > 0
    before = stratalloc.report()["nodes_without_scope"]
    slope.pow(2).sum().backward()
    assert stratalloc.report()["nodes_without_scope"] == before
    # What autograd.grad returns is a gradient of the layer that computed it.
    found = rows("Twice")
    assert found["0.linear", "gradient"] == WEIGHT + slope.nbytes
    assert found["", "gradient"] == x.grad.nbytes
    del slope
    assert total("Twice", "gradient") == 3 * WEIGHT + x.grad.nbytes
    assert total("Twice", "activation") == 0


def test_loaded_state_is_the_parameters_before_the_next_step():
    model = net("Resumed")
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    model(torch.randn(BATCH, SIZE, device="cuda")).sum().backward()
    optimizer.step()
    saved = {key: value.cpu() if torch.is_tensor(value) else value
             for key, value in optimizer.state_dict().items()}
    before = stratalloc.holders(by="category")
    optimizer.load_state_dict(saved)
    assert total("Resumed", "optimizer_state") == 3 * 2 * WEIGHT
    assert (stratalloc.holders(by="category").to_dict()["rows"]
            == before["rows"])


def test_tensors_have_names():
    model = net("Named", layers=1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(BATCH, SIZE, device="cuda")).sum().backward()
    optimizer.step()
    names = {(row.name, row.category)
             for row in stratalloc.holders(by="tensor").rows
             if row.name.startswith("Named") and row.bytes == WEIGHT}
    # A gradient may be gone while it is asked for: its owner's row has it.
    assert names == {("Named.0.linear.weight", "parameter"),
                     ("Named.0.linear", "gradient"),
                     ("Named.0.linear.weight.exp_avg", "optimizer_state"),
                     ("Named.0.linear.weight.exp_avg_sq", "optimizer_state")}


def test_gradients_that_the_program_assigns():
    """Nodes tell of theirs; of these a step and watch(), and no answer."""
    model = net("ByTheProgram")
    loose = [torch.ones(SIZE, SIZE, device="cuda") for _ in range(3)]
    for layer, gradient in zip(model, loose):
        layer.linear.weight.grad = gradient
    assert total("ByTheProgram", "gradient") == 0
    stratalloc.watch(model[0])
    assert total("ByTheProgram", "gradient") == WEIGHT
    torch.optim.SGD(model.parameters()).step()
    assert total("ByTheProgram", "gradient") == 3 * WEIGHT


def test_watch_names_before_the_first_use():
    with torch.device("cuda"):
        model = type("Watched", (nn.Module,), {})()
        model.layers = nn.ModuleList([nn.Linear(SIZE, SIZE) for _ in range(2)])
    stratalloc.watch(model, torch.optim.SGD(model.parameters()))
    assert ("layers.1", "parameter") in rows("Watched")
    with pytest.raises(TypeError, match="nn.Module, not int"):
        stratalloc.watch(3)
    with pytest.raises(TypeError, match="Optimizer, not list"):
        stratalloc.watch(model, [])


def test_what_enters_the_root_module_is_its_input():
    model = net("Entered")
    x, y, z = (torch.randn(BATCH, SIZE, device="cuda") for _ in range(3))
    with stratalloc.scope("Loader"):
        mine = torch.randn(BATCH, SIZE, device="cuda")
    wrapper = type("Entered2", (nn.Module,), {
        "forward": lambda self, x, more, key=None: model(x)})()
    wrapper(x, [(mine, y[:3])], key={"z": z})
    assert rows("Entered2") == {("", "input"): 3 * x.nbytes}
    assert total("Loader", "unknown") == mine.nbytes, "its own scope's"
    # A part of a model called by itself is no root, and its input anybody's.
    other = torch.randn(BATCH, SIZE, device="cuda")
    model[0](other)
    assert total("Entered", "input") == 0


def test_a_refusal_names_the_largest_holder():
    with stratalloc.scope("Refused.cache", category="activation"):
        cache = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
    with stratalloc.scope("Refused.small", category="activation"):
        small = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    text = str(raised.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 100.00 MiB")
    assert len(raised.value.args) == 1
    assert "Activations hold 208.00 MiB: reduce the batch size" in text
    assert text.endswith(" Largest: Refused.cache, 200.00 MiB.")
    del cache, small


def test_annotate_charges_a_storage():
    cache = torch.empty(1 << 20, device="cuda", dtype=torch.uint8)
    assert stratalloc.annotate(cache[:5], "Annotated.kv",
                               category="buffer") == 1 << 20
    assert rows("Annotated") == {("kv", "buffer"): 1 << 20}
    assert stratalloc.annotate(torch.ones(3), "Annotated.cpu") == 0
    with pytest.raises(ValueError, match="'cash' does not exist"):
        stratalloc.annotate(cache, "Annotated.kv", category="cash")
    with pytest.raises(ValueError, match="non-empty"):
        stratalloc.annotate(cache, "")
    with pytest.raises(TypeError, match="Tensor, not str"):
        stratalloc.annotate("cache", "kv")


def test_annotate_accepts_the_earlier_keyword():
    cache = torch.empty(1024, device="cuda")
    assert stratalloc.annotate(cache, name="Earlier.kv") == 4096
    assert "Earlier.kv" in {row.name for row in stratalloc.holders().rows}
    assert stratalloc.annotate(tensor=cache, scope="Later.kv") == 4096
    assert "Later.kv" in {row.name for row in stratalloc.holders().rows}
    with pytest.raises(TypeError, match="name is the earlier spelling of scope"):
        stratalloc.annotate(cache, scope="Later.kv", name="Earlier.kv")


def test_what_was_annotated_stays_so():
    """Reports, steps and watch() know better owners, and leave it."""
    model = net("Kept", layers=2)
    optimizer = torch.optim.Adam(model.parameters())

    def backward():
        model(torch.ones(BATCH, SIZE, device="cuda")).sum().backward()

    backward()
    optimizer.step()
    weight = model[0].linear.weight
    state = optimizer.state[weight]["exp_avg"]
    for tensor, name in ((weight, "weight"), (weight.grad, "gradient"),
                         (state, "state")):
        assert stratalloc.annotate(tensor, f"Mine.{name}") == WEIGHT
    expected = {("weight", "parameter"): WEIGHT,
                ("gradient", "gradient"): WEIGHT,
                ("state", "optimizer_state"): WEIGHT}
    for happens in (stratalloc.report, optimizer.step,
                    lambda: stratalloc.watch(model, optimizer)):
        happens()
        assert rows("Mine") == expected
        assert total("Kept", "parameter") == WEIGHT  # the other layer's
    named = {row.name: row.bytes
             for row in stratalloc.holders(by="tensor").rows}
    assert named["Mine.weight"] == named["Mine.state"] == WEIGHT
    assert "Kept.0.linear.weight" not in named
    assert named["Kept.1.linear.weight"] == WEIGHT
    backward()  # autograd says of each gradient whose it is
    assert rows("Mine") == {("weight", "parameter"): WEIGHT,
                            ("weight", "gradient"): WEIGHT,
                            ("state", "optimizer_state"): WEIGHT}


def test_an_annotated_tensor_takes_no_others_bytes():
    """Of two of one module and one size the other is named."""
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (
                nn.Parameter(torch.ones(SIZE, SIZE)) for _ in range(2))

    pair = Pair().cuda()
    stratalloc.annotate(pair.first, "Apart")
    named = {row.name for row in stratalloc.holders(by="tensor").rows}
    assert {"Apart", "Pair.second"} <= named and "Pair.first" not in named


def test_an_annotation_ends_with_its_storage():
    with stratalloc.scope("Ended", category="parameter"):
        cache = torch.empty(WEIGHT // 4, device="cuda")
    address = cache.data_ptr()
    assert stratalloc.annotate(cache, "Ended") == WEIGHT
    del cache
    model = net("Heir", layers=4)
    assert address in [each.data_ptr() for each in model.parameters()]
    assert rows("Ended") == {}
    assert total("Heir", "parameter") == 4 * WEIGHT


@pytest.mark.parametrize("at", ["now", "peak"])
def test_holders_by_module_are_those_by_owner(at):
    model = net("Spelt")
    earlier = stratalloc.holders(by="module", at=at)
    assert earlier.rows and earlier.rows == stratalloc.holders(
        by="owner", at=at).rows == stratalloc.holders(at=at).rows
    assert earlier.text() == stratalloc.holders(at=at).text()
    with pytest.raises(ValueError, match="owner, category, site, tensor"):
        stratalloc.holders(by="modul", at=at)
    del model


def test_results_are_dicts_and_text():
    model = net("Shown", layers=12)
    found = stratalloc.holders()
    assert dict(found) == found.to_dict()
    assert set(found["rows"][0]) == {"name", "category", "bytes", "count",
                                     "tier"}
    assert "Shown.0–11 × 12" in str(found)
    assert "Shown.0–11 × 12" in found._repr_html_()
    rows = stratalloc.peak()["rows"]
    assert sum(row["bytes"] for row in rows) == stratalloc.peak()["total"]
    assert len(found.text(all=True).splitlines()) >= len(
        str(found).splitlines())
    assert stratalloc.holders(by="site").rows[0].name == (
        "(sites are not recorded: enable(telemetry=\"callsites\") "
        "records them)")
    for wrong in ({"by": "layer"}, {"at": "then"},
                  {"by": "tensor", "at": "peak"}):
        with pytest.raises(ValueError, match="stratalloc.holders"):
            stratalloc.holders(**wrong)
    del model


def test_a_loss_outside_of_every_module_is_nobodys():
    """What a scope around it changes, of the whole peak: README.md."""
    words = 5000
    model = type("Outside", (nn.Sequential,), {})(
        nn.Embedding(words, 64), nn.Linear(64, words)).cuda()
    with stratalloc.scope("batch"):
        tokens = torch.arange(512, device="cuda")
        labels = torch.arange(512, device="cuda")

    def share(around):
        torch.cuda.reset_peak_memory_stats()
        before = {row.name: row.bytes for row in stratalloc.holders().rows
                  if row.name.startswith("(")}
        with around:
            loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        model.zero_grad()
        peak = stratalloc.peak()
        nobodys = sum(row.bytes for row in peak.rows
                      if row.name.startswith("("))
        # Less what other tests left.
        older = sum(before.values())
        return 1 - (nobodys - older) / (peak.total - older)

    stratalloc.watch(model)  # names modules, and a loss is in none
    assert share(contextlib.nullcontext()) < 0.2
    assert share(stratalloc.scope("loss")) > 0.99
