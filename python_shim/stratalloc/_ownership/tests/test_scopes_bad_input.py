# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around scopes: pops too many, threads that die inside, hooks
that raise. The stack is balanced afterwards, and every byte has an owner
still."""

import gc

import pytest

from stratalloc import simulate

simulate.load("64MiB", devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from python_shim.testing.accounts import (  # noqa: E402,F401
    after_backward, on_thread, rows, sums,
    total)
from device_nets import SIZE, WEIGHT, data, net, ones  # noqa: E402
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc._native import core as _core  # noqa: E402
from stratalloc._native import _scopes  # noqa: E402

DEEPEST = 256  # kMaxScopeDepth of accounting/scope_stack.h


# ---- pops -------------------------------------------------------------------


def test_pops_without_a_push_change_nothing():
    c_pop = _core.lib().stratalloc_scope_pop
    for pop in (_scopes.pop, c_pop):
        assert not pop()
        with stratalloc.scope("Unbalanced"):
            mine = ones(1)
            assert pop(), "the scope's own frame"
            assert not pop()
            loose = ones(2)  # nobody's: the frame is gone
        # Leaving the scope popped a frame that was no longer there.
        assert _scopes.current() == (0, 0, 0)
        assert rows("Unbalanced") == {("", "unknown"): mine.nbytes}
        with stratalloc.scope("Unbalanced/next"):
            other = ones(3)
        assert rows("Unbalanced")["next", "unknown"] == other.nbytes
        del mine, loose, other
        assert rows("Unbalanced") == {}


def test_a_module_that_pops_its_own_frame():
    class Popping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(SIZE, SIZE, bias=False)

        def forward(self, x):
            x = self.inner(x)
            assert _scopes.pop()
            return self.inner(x)

    model = Popping().to("cuda").requires_grad_(False)
    out = model(data())
    assert _scopes.current() == (0, 0, 0)
    assert rows("Popping")["inner", "parameter"] == WEIGHT
    assert total("Popping", "activation") == out.nbytes
    with stratalloc.scope("Around"):
        model(data())
        kept = ones(1)
    assert rows("Around") == {("", "unknown"): kept.nbytes}


def test_a_module_that_does_not_leave_a_scope():
    """What it opened ends with it: its caller's memory is its caller's."""
    class Opening(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(SIZE, SIZE, bias=False)

        def forward(self, x):
            stratalloc.scope("opened").__enter__()
            return self.inner(x)

    class Calling(nn.Module):
        def __init__(self):
            super().__init__()
            self.opening = Opening()

        def forward(self, x):
            x = self.opening(x)
            assert _scopes.name(_scopes.current()[0]) == "Calling"
            self.kept = ones(1)
            return x

    model = Calling().to("cuda").requires_grad_(False)
    out = model(data())
    assert _scopes.current() == (0, 0, 0)
    assert rows("Calling") == {
        ("opening.inner", "parameter"): WEIGHT, ("", "activation"): 512,
        ("opening.inner", "activation"): out.nbytes}


def _hanging(name):
    with stratalloc.scope(name):
        yield


def test_a_generator_that_is_closed_when_its_module_has_ended():
    class Generating(nn.Module):
        def forward(self, x):
            self.generator = _hanging("hanging")
            next(self.generator)
            return x

    model = Generating()
    model(data())
    assert _scopes.current() == (0, 0, 0)
    with stratalloc.scope("Outside"):
        model(data())
        old, model.generator = model.generator, None
        old.close()
        kept = ones(1)
    assert rows("Outside") == {("", "unknown"): kept.nbytes}


def test_a_generator_that_another_thread_closes():
    generator = _hanging("Hanging")
    next(generator)
    kept = []

    def close():
        with stratalloc.scope("Closing"):
            generator.close()
            kept.append(ones(1))

    on_thread(close)
    assert rows("Closing") == {("", "unknown"): 512}
    assert _scopes.pop(), "the frame is of the thread that entered it"
    assert not _scopes.pop()


def test_scopes_deeper_than_the_stack_stores():
    scope = stratalloc.scope("Deep", category="buffer")
    for _ in range(DEEPEST + 50):
        _scopes.push(_scopes.intern("Deep"), 2, 1)
    kept = ones(4)
    with scope:
        more = ones(2)
    for _ in range(DEEPEST + 50):
        assert _scopes.pop()
    assert not _scopes.pop()
    assert rows("Deep") == {("", "buffer"): kept.nbytes + more.nbytes}


# ---- threads that die inside -------------------------------------------------


def test_a_thread_that_dies_inside_of_its_scopes():
    """What it made stays its owners'; what was temporary is kept, and so an
    activation; who frees it later credits the owner."""
    kept = {}

    def run():
        stratalloc.scope("Dying", category="buffer").__enter__()
        kept["buffer"] = ones(1)
        stratalloc.scope("in", category="activation").__enter__()
        kept["inner"] = ones(2)
        gone = ones(4)
        stratalloc.scope("deeper").__enter__()
        kept["deeper"] = ones(8)
        del gone

    on_thread(run)
    assert rows("Dying") == {("", "buffer"): 512, ("in", "activation"): 1024,
                             ("in/deeper", "activation"): 4096}
    on_thread(lambda: (kept.pop("inner"), gc.collect()))
    assert rows("Dying") == {("", "buffer"): 512,
                             ("in/deeper", "activation"): 4096}
    kept.clear()
    assert rows("Dying") == {}
    on_thread(lambda: kept.setdefault("next", (ones(1), _scopes.current())))
    assert kept["next"][1] == (0, 0, 0), "a thread begins outside of scopes"


def test_a_thread_that_dies_inside_of_a_module():
    model = net("DyingNet")
    kept = []

    class Ends(Exception):
        pass

    def fail(module, inputs, output):
        kept.append(output)
        raise Ends

    handle = model[1].register_forward_hook(fail)
    with pytest.raises(Ends):
        on_thread(lambda: model(data()))
    handle.remove()
    # Its frames were left one by one, as the exception passed.
    assert rows("DyingNet")["1", "activation"] == kept[0].nbytes
    kept.clear()
    gc.collect()  # the exception has its frames
    model(data())
    assert total("DyingNet", "activation") == 0


# ---- hooks that raise ------------------------------------------------------


class Planted(Exception):
    """Raised on purpose."""


def fail(*args, **kwargs):
    raise Planted


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ones(1)
        raise Planted


def fails_in_function(model):
    return model[1].register_forward_hook(
        lambda module, inputs, output: Failing.apply(output))


HOOKS = {
    "forward_pre": lambda model: model[1].register_forward_pre_hook(fail),
    "forward": lambda model: model[1].register_forward_hook(fail),
    "forward_always": lambda model: model[1].register_forward_hook(
        fail, always_call=True),
    "backward_pre": lambda model: model[1].register_full_backward_pre_hook(
        fail),
    "backward": lambda model: model[1].register_full_backward_hook(fail),
    "tensor": lambda model: model[1].weight.register_hook(fail),
    "accumulated": lambda model: (
        model[1].weight.register_post_accumulate_grad_hook(fail)),
    "function": fails_in_function,
}


def step(model, x, wrap):
    wrap(model, x).sum().backward()


WAYS = {
    "plain": lambda model, x: model(x),
    "checkpoint": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "reentrant": lambda model, x: checkpoint(model, x, use_reentrant=True),
}


# torch's own: a checkpoint's generator, given up by the exception, complains.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises(hook, way):
    """More often than frames fit on a stack: one left behind would show."""
    name = f"Raising_{hook}_{way}"
    model = net(name)
    x = data(requires_grad=True)
    WAYS[way](model, x).sum().backward()
    expected = rows(name)
    handle = HOOKS[hook](model)
    for _ in range(DEEPEST // 2 + 5):
        with pytest.raises(Planted):
            step(model, x, WAYS[way])
        assert _scopes.current() == (0, 0, 0)
    with pytest.raises(Planted):
        on_thread(lambda: step(model, x, WAYS[way]))
    handle.remove()
    assert after_backward() == (0, 0, 0), "on autograd's thread"
    model.zero_grad()
    x.grad = None
    gc.collect()
    step(model, x, WAYS[way])
    assert rows(name) == expected


def test_a_function_that_raises_before_the_next_device():
    """Both devices have a thread of autograd's."""
    first, second = net("FirstOf2"), net("SecondOf2").to("cuda:1")
    x = data()
    for _ in range(5):
        with pytest.raises(Planted):
            second(Failing.apply(first(x)).to("cuda:1")).sum().backward()
    second(first(x).to("cuda:1")).sum().backward()
    assert total("FirstOf2", "gradient") == 2 * WEIGHT
    other = {(row.name, row.category): row.bytes
             for row in stratalloc.holders(device=1).rows}
    assert other["SecondOf2.0", "gradient"] == WEIGHT
    assert other["SecondOf2.1", "gradient"] == WEIGHT
    assert sum(other.values()) == torch.cuda.memory_allocated(1)


def test_step_hooks_that_raise():
    model = net("Stepping")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    model(data()).sum().backward()
    for register in (optimizer.register_step_pre_hook,
                     optimizer.register_step_post_hook):
        handle = register(fail)
        for _ in range(3):
            with pytest.raises(Planted):
                optimizer.step()
            assert _scopes.current() == (0, 0, 0)
        handle.remove()
    optimizer.step()
    assert total("Stepping", "optimizer_state") == 4 * WEIGHT
    assert rows("Optimizer") == {}
