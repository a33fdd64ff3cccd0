# SPDX-License-Identifier: Apache-2.0
"""Who pays for what backward allocates, whatever node, thread and order.

A layer is a Linear without bias: WEIGHT bytes of parameter and of gradient, a
result of RESULT bytes. What a hook or a custom function makes and keeps while a
layer's nodes run is MARK bytes, so that sums tell whose it is.
"""

import gc

import pytest

from stratalloc import simulate

simulate.load("128MiB", devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from python_shim.testing.accounts import on_thread, rows, sums, total  # noqa: E402,F401
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402

BATCH, SIZE = 32, 64
WEIGHT = SIZE * SIZE * 4
RESULT = BATCH * SIZE * 4
MARK = 1 << 20


def mark():
    return torch.empty(MARK, dtype=torch.uint8, device="cuda")


def net(name, layers=3):
    return type(name, (nn.Sequential,), {})(
        *[nn.Linear(SIZE, SIZE, bias=False)
          for _ in range(layers)]).to("cuda")


def data(requires_grad=False):
    return torch.randn(BATCH, SIZE, device="cuda",
                       requires_grad=requires_grad)


def below(path, at="now"):
    """Bytes of the owner at `path` and below it, by category."""
    found = {}
    for (_, category), size in rows(path, at).items():
        found[category] = found.get(category, 0) + size
    return found


@pytest.fixture(autouse=True)
def all_nodes_have_a_scope():
    before = stratalloc.report()["nodes_without_scope"]
    yield
    assert stratalloc.report()["nodes_without_scope"] == before


def gradients_are_exact(name, layers=3):
    assert {key: size for key, size in rows(name).items()
            if key[1] == "gradient" and key[0]} == {
        (str(i), "gradient"): WEIGHT for i in range(layers)}


def test_more_rows_than_features():
    """Both operands of the first layer's node are smaller than what it is
    given, which yet is no leaf's gradient, nor many leaves' in one piece."""
    name = "MoreRows"
    model = type(name, (nn.Sequential,), {})(
        nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 128)).to("cuda")
    rows_of_data = torch.randn(512, 64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    model(rows_of_data).sum().backward()
    of_leaves = sum(p.grad.nbytes for p in model.parameters())
    assert total(name, "gradient") == of_leaves
    assert total(name, "gradient", at="peak") <= of_leaves


# ---- functions ------------------------------------------------------------

class Plain(torch.autograd.Function):
    kept = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Plain.kept.append(mark())
        return gradient * 2


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        Plain.kept.append(mark())
        return 2 * x * gradient


class Nested(torch.autograd.Function):
    """Applies another in its forward, and a graph of its own in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Saving.apply(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            result = Saving.apply(again)
        inner, = torch.autograd.grad(result, again, gradient)
        return inner


@pytest.mark.parametrize("function", [Plain, Saving, Nested])
def test_custom_functions(function):
    name = f"Custom_{function.__name__}"
    model = net(name)
    model[1].register_forward_hook(
        lambda module, inputs, output: function.apply(output))
    Plain.kept.clear()
    torch.cuda.reset_peak_memory_stats()
    model(data()).sum().backward()
    assert len(Plain.kept) == 1
    # At the peak and after it, and of no other layer. What it is depends on
    # whether the function's result may be a leaf's gradient.
    for at in ("now", "peak"):
        mine = below(name + ".1", at)
        rest = {i: below(f"{name}.{i}", at) for i in (0, 2)}
        assert sum(mine.values()) - mine["parameter"] >= MARK, (at, mine)
        for i, found in rest.items():
            assert sum(found.values()) < MARK, (at, i, found)
    gradients_are_exact(name)
    Plain.kept.clear()
    assert below(name + ".1") == {"parameter": WEIGHT, "gradient": WEIGHT}


# ---- hooks that allocate ----------------------------------------------------

HOOKS = {
    "tensor": lambda layer, keep: layer.weight.register_hook(keep),
    "accumulated": lambda layer, keep: (
        layer.weight.register_post_accumulate_grad_hook(keep)),
    "backward_pre": lambda layer, keep: layer.register_full_backward_pre_hook(
        keep),
    "backward": lambda layer, keep: layer.register_full_backward_hook(keep),
    "result": lambda layer, keep: layer.register_forward_hook(
        lambda module, inputs, output: output.register_hook(keep) and None),
    "node": lambda layer, keep: layer.register_forward_hook(
        lambda module, inputs, output: (
            output.grad_fn.register_hook(keep) and None)),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_that_allocate(hook):
    name = f"Hooked_{hook}"
    model = net(name)
    kept = []

    def keep(*args):
        kept.append(mark())

    HOOKS[hook](model[1], keep)
    model(data(requires_grad=True)).sum().backward()
    assert len(kept) == 1
    found = {i: sum(below(f"{name}.{i}").values()) for i in range(3)}
    assert found == {0: 2 * WEIGHT, 1: 2 * WEIGHT + MARK, 2: 2 * WEIGHT}
    gradients_are_exact(name)


# ---- checkpoints --------------------------------------------------------------

class Recomputed(nn.Module):
    """Takes MARK bytes for a moment whenever it runs inside of backward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE, bias=False)
        self.drop = nn.Dropout(.5)

    def forward(self, x):
        if torch._C._current_graph_task_id() != -1:
            mark()
        return self.drop(self.linear(x))


def nested(layer, x, **options):
    return checkpoint(lambda x: checkpoint(layer, x, use_reentrant=False), x,
                      use_reentrant=False, **options)


FORMS = {
    "reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    "other": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "nested": nested,
    "nested in reentrant": lambda layer, x: checkpoint(
        lambda x: checkpoint(layer, x, use_reentrant=False), x,
        use_reentrant=True),
    "without rng": lambda layer, x: checkpoint(
        layer, x, use_reentrant=False, preserve_rng_state=False),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_checkpoints(form, half):
    name = f"Checkpointed_{form.replace(' ', '_')}_{half}"
    model = type(name, (nn.Module,), {
        "forward": lambda self, x: self.last(
            FORMS[form](self.middle, self.first(x)))})()
    model.first, model.last = (nn.Linear(SIZE, SIZE, bias=False)
                               for _ in range(2))
    model.middle = Recomputed()
    model.to("cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        loss = model(data(requires_grad=True)).float().sum()
    torch.cuda.reset_peak_memory_stats()
    loss.backward()
    # The peak is where the recomputation takes its mark.
    assert torch.cuda.max_memory_allocated() > MARK
    middle = below(name + ".middle", "peak")
    assert MARK <= middle["temporary"] < MARK + MARK // 2, middle
    for other in ("first", "last"):
        assert sum(below(f"{name}.{other}", "peak").values()) < MARK // 2
    for layer in ("first", "middle.linear", "last"):
        found = below(f"{name}.{layer}")
        assert found == {"parameter": WEIGHT, "gradient": WEIGHT}, layer
    model.zero_grad()
    assert below(name).keys() <= {"parameter", "input", "gradient"}


# ---- gradients of gradients ---------------------------------------------------

@pytest.mark.parametrize("how", ["grad", "backward"])
def test_double_backward(how):
    name = f"Double_{how}"
    model = net(name)
    x = data(requires_grad=True)
    kept = []
    loss = model(x).square().mean()
    if how == "grad":
        gradient, = torch.autograd.grad(loss, x, create_graph=True)
    else:
        loss.backward(create_graph=True)
        gradient, x.grad = x.grad, None
        model.zero_grad()
    del loss
    # A node that the first backward made, of layer 1.
    model[1].weight.register_hook(lambda grad: kept.append(mark()))
    gradient.square().sum().backward()
    del gradient
    gc.collect()
    found = below(name + ".1")
    assert len(kept) >= 1
    assert found["activation"] == len(kept) * MARK, found
    kept.clear()
    gradients_are_exact(name)
    assert below(name + ".1") == {"parameter": WEIGHT, "gradient": WEIGHT}


def test_retained_graphs():
    """What forward kept for backward stays until the graph is given up."""
    model = net("Retained")
    loss = model(data()).square().mean()
    activations = total("Retained", "activation")
    assert activations == 3 * RESULT
    for _ in range(2):
        loss.backward(retain_graph=True)
        assert total("Retained", "activation") == activations
        gradients_are_exact("Retained")
    loss.backward()
    assert total("Retained", "activation") == 0
    gradients_are_exact("Retained")


# ---- threads and devices ------------------------------------------------------

def test_devices_have_threads_of_their_own():
    first, second = net("OnFirst", 1), net("OnSecond", 1).to("cuda:1")
    kept = []

    def keep(grad):
        kept.append(torch.empty(MARK, dtype=torch.uint8, device=grad.device))

    for layer in (first[0], second[0]):
        layer.weight.register_hook(keep)
    second(first(data()).to("cuda:1")).sum().backward()
    assert below("OnFirst.0") == {"parameter": WEIGHT, "gradient": WEIGHT,
                                  "activation": MARK}
    other = {(row.name, row.category): row.bytes
             for row in stratalloc.holders(device=1).rows}
    assert other["OnSecond.0", "parameter"] == WEIGHT
    assert other["OnSecond.0", "gradient"] == WEIGHT
    assert other["OnSecond.0", "activation"] == MARK
    assert sum(other.values()) == torch.cuda.memory_allocated(1)


def test_data_parallel():
    """Replicas are made anew in each forward; their bytes are the model's. Its
    gradients come in one buffer, which is one layer's of it."""
    model = net("Parallel")
    wrapped = nn.DataParallel(model, device_ids=[0, 1])
    gc.collect()
    torch.cuda.reset_peak_memory_stats(1)  # of another test's, before
    for _ in range(2):
        wrapped(data()).sum().backward()
        assert total("Parallel", "gradient") == 3 * WEIGHT
    replicas = stratalloc.peak(device=1)
    mine = sum(row.bytes for row in replicas.rows
               if row.name.split(".")[0] in ("Parallel", "DataParallel"))
    assert mine >= 3 * WEIGHT, replicas
    assert all(row.category != "unknown" for row in replicas.rows
               if row.name.startswith("Parallel")), replicas
    model.zero_grad()
    gc.collect()
    assert torch.cuda.memory_allocated(1) == sum(
        row.bytes for row in stratalloc.holders(device=1).rows)


def test_backward_on_another_thread():
    model = net("Elsewhere")
    kept = []
    model[1].weight.register_hook(lambda grad: kept.append(mark()))
    loss = model(data()).sum()

    def backward():
        with stratalloc.scope("Someone"):  # who asks for it pays for nothing
            loss.backward()

    on_thread(backward)
    assert below("Elsewhere.1") == {"parameter": WEIGHT, "gradient": WEIGHT,
                                    "activation": MARK}
    gradients_are_exact("Elsewhere")
    assert rows("Someone") == {}


def test_backward_of_a_module_that_is_gone():
    """Its nodes have its path still."""
    model = net("Gone")
    kept = []
    model[1].weight.register_hook(lambda grad: kept.append(mark()))
    weights = list(model.parameters())
    loss = model(data()).sum()
    del model
    gc.collect()
    loss.backward()
    assert below("Gone.1")["activation"] == MARK
    assert [weight.grad.nbytes for weight in weights] == [WEIGHT] * 3
    gradients_are_exact("Gone")
    del weights, loss
    kept.clear()
    gc.collect()
    assert rows("Gone") == {}


# ---- which tensor is whose ----------------------------------------------------

def test_views_and_edits_in_place():
    class Edits(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(SIZE, SIZE, bias=False)

        def forward(self, x):
            y = self.linear(x)
            y[:, ::2].mul_(2)
            y.view(-1)[:SIZE].add_(1)
            return y.unbind(0)[0].expand(4, -1).t()

    model = type("EditedNet", (nn.Sequential,), {})(
        Edits(), nn.Linear(4, 4, bias=False)).to("cuda")
    x = data(requires_grad=True)
    model(x).square().sum().backward()
    assert below("EditedNet.0.linear") == {"parameter": WEIGHT,
                                           "gradient": WEIGHT}
    assert below("EditedNet.1") == {"parameter": 512, "gradient": 512}
    assert total("EditedNet", "activation") == 0
    assert x.grad.nbytes == RESULT


def test_tied_weights():
    """One gradient, of the first that has the parameter."""
    model = net("Tied", layers=3)
    model[2].weight = model[0].weight
    model(data()).sum().backward()
    assert below("Tied.0") == {"parameter": WEIGHT, "gradient": WEIGHT}
    assert below("Tied.1") == {"parameter": WEIGHT, "gradient": WEIGHT}
    assert below("Tied.2") == {}


def test_accumulated_gradients():
    model = net("Accumulated")
    for _ in range(3):
        model(data()).sum().backward()
        gradients_are_exact("Accumulated")
    assert total("Accumulated", "activation") == 0
