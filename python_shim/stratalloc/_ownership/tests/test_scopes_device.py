# SPDX-License-Identifier: Apache-2.0
"""Who owns each byte, on the simulated device with the real core.

One process for the file: the device is loaded before torch is imported.
"""

import gc
import threading

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc._ownership import modules as _modules  # noqa: E402
from stratalloc._native import _scopes  # noqa: E402

SIZE = 64
WEIGHT = SIZE * SIZE * 4
BIAS = 512  # 256 bytes, rounded


@pytest.fixture(autouse=True)
def balanced():
    gc.collect()
    yield
    assert _scopes.current() == (0, 0, 0), "frames left on the stack"


class Block(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE, device=device)
        self.register_buffer("scale", torch.ones(SIZE, device=device))

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale


def live(owner, category):
    _modules.relabel_all()
    return sum(row["live"] for row in stratalloc.report()["layers"]
               if row["owner"] == owner and row["category"] == category)


def make(name, **arguments):
    """A model whose root name nobody else uses: rows outlive tests."""
    return type(name, (Block,), {})(**arguments)


def charged(root):
    """{(path, category): bytes} below `root`, as charged without a report."""
    return {(row["owner"], row["category"]): row["live"]
            for row in stratalloc._native.core.report(0)["layers"]
            if row["live"] and row["owner"].split(".")[0] == root}


class Flat(nn.Module):
    """Makes one buffer of its weights once they have moved, as an RNN does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(SIZE, SIZE))
                          for _ in range(2))

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        return flatten(self)


def flatten(module):
    flat = torch.cat([module.a.data, module.b.data])
    module.a.data, module.b.data = flat[:SIZE], flat[SIZE:]
    return module


class Mixin:
    """No module; FSDP2's classes have their _apply from such a one."""

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        return flatten(self)


def test_what_an_overridden_apply_allocates_is_the_modules():
    class Later(Flat):  # made after installation
        def _apply(self, fn, recurse=True):
            return flatten(super()._apply(fn, recurse))

    class Mixed(Mixin, Flat):
        pass

    for cls in (Flat, Later, Mixed):
        model = cls().to("cuda")
        assert charged(cls.__name__) == {
            (cls.__name__, "parameter"): 2 * WEIGHT}
    model = type("Nests", (nn.Sequential,), {})(Flat()).to("cuda")
    assert charged("Nests") == {("Nests.0", "parameter"): 2 * WEIGHT}


def test_lstm_that_was_moved():
    name = "MovedLSTM"
    model = type(name, (nn.LSTM,), {})(SIZE, SIZE).to("cuda")
    size = sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
                for p in model.parameters()}.values())
    assert charged(name) == {(name, "parameter"): -(-size // 512) * 512}


def test_moved_model_owns_its_bytes_from_the_start():
    model = make("Moved").to("cuda")
    rows = {(row["owner"], row["category"]): row
            for row in stratalloc.report()["layers"]}
    weights = rows["Moved.linear", "parameter"]
    assert weights["live"] == weights["peak"] == WEIGHT + BIAS
    assert rows["Moved", "buffer"]["live"] == BIAS
    # On top while allocated: never charged to anyone else.
    assert ("Moved", "parameter") not in rows
    assert model.linear.weight.is_cuda


def test_constructed_on_the_device_is_relabelled_when_named():
    before = live("Linear", "parameter")
    model = make("Constructed", device="cuda")
    assert live("Linear", "parameter") == before + WEIGHT + BIAS
    model(torch.ones(1, SIZE, device="cuda"))
    assert live("Linear", "parameter") == before
    assert live("Constructed.linear", "parameter") == WEIGHT + BIAS
    assert live("Constructed", "buffer") == BIAS


def test_loaded_before_the_module_exists():
    weight = torch.ones(SIZE, SIZE, device="cuda")
    nobody = live("(no scope)", "unknown")
    address = weight.data_ptr()
    model = make("Loaded")
    model.linear.bias = None
    model.linear.weight = nn.Parameter(weight)
    model.scale = torch.ones(SIZE, device="cuda")
    model(torch.ones(1, SIZE, device="cuda"))
    assert live("Loaded.linear", "parameter") == WEIGHT
    assert live("(no scope)", "unknown") <= nobody - WEIGHT + BIAS
    assert model.linear.weight.data_ptr() == address


def test_loaded_evicted_then_relabelled_then_restored():
    weight = torch.arange(SIZE * SIZE, device="cuda",
                          dtype=torch.float32).view(SIZE, SIZE)
    expected = weight.cpu()
    stratalloc.evict(weight)
    model = make("Evicted")
    model.linear.weight = nn.Parameter(weight)
    model.float()
    assert live("Evicted.linear", "parameter") == WEIGHT
    assert torch.equal(model.linear.weight.detach().cpu(), expected)
    assert live("Evicted.linear", "parameter") == WEIGHT


def test_training_charges_gradients_and_state():
    model = make("Trained").to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.ones(2, SIZE, device="cuda")
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert live("Trained.linear", "parameter") == WEIGHT + BIAS
    assert live("Trained.linear", "gradient") == WEIGHT + BIAS
    assert live("Trained.linear", "optimizer_state") == 2 * (WEIGHT + BIAS)
    assert live("Optimizer.AdamW", "optimizer_state") == 0
    assert live("Optimizer.AdamW", "temporary") == 0
    optimizer.zero_grad()
    assert live("Trained.linear", "gradient") == 0


def test_activations_belong_to_the_module_that_made_them():
    model = make("Active").to("cuda")
    out = model(torch.ones(8, SIZE, device="cuda"))
    # The linear's output is freed by then; relu's is kept for backward.
    assert live("Active", "activation") >= out.untyped_storage().nbytes()
    assert live("Active.linear", "activation") in (0, 2048)
    del out
    assert live("Active", "activation") == 0


def test_user_scope_owns_what_it_allocates():
    with stratalloc.scope("cache", category="buffer"):
        cache = torch.zeros(1000, device="cuda")
        with stratalloc.scope("part"):
            part = torch.zeros(1000, device="cuda")
    assert live("cache", "buffer") == 4096
    assert live("cache/part", "buffer") == 4096
    del cache, part
    assert live("cache", "buffer") == 0


def test_freed_by_another_thread_is_credited_to_the_owner():
    with stratalloc.scope("handed over"):
        box = [torch.zeros(1000, device="cuda")]
    assert live("handed over", "unknown") == 4096

    def work():
        with stratalloc.scope("thief"):
            box.clear()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert live("handed over", "unknown") == 0


def test_sum_of_owners_is_what_is_allocated():
    model = make("Summed").to("cuda")
    model(torch.ones(1, SIZE, device="cuda")).sum().backward()
    _modules.relabel_all()
    rows = stratalloc.report()["layers"]
    assert (sum(row["device"] for row in rows)
            == torch.cuda.memory_stats()["allocated_bytes.all.current"])
    for row in rows:
        assert row["live"] == row["device"] + row["host"] + row["disk"]
        assert row["peak"] >= row["live"]


def test_compile_sees_one_graph_with_the_real_functions():
    model = make("Compiled")
    x = torch.ones(1, SIZE)
    expected = model(x)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x), expected)
    assert torch.equal(compiled(x), expected)
    assert len(graphs) == 1
    assert torch._dynamo.explain(model)(x).graph_break_count == 0


def test_sixteen_threads_share_one_model():
    model = make("Shared").to("cuda").requires_grad_(False)
    x = torch.ones(1, SIZE, device="cuda")
    expected = model(x).cpu()
    failures = []

    def work():
        try:
            for _ in range(5):
                assert torch.equal(model(x).cpu(), expected)
            assert _scopes.current() == (0, 0, 0)
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert live("Shared.linear", "parameter") == WEIGHT + BIAS
    assert live("Shared", "activation") == 0
    assert live("Shared.linear", "activation") == 0
