# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around scopes: pops too many, threads that die inside, hooks
that raise, modules that change while they are walked. The stack is balanced
afterwards, and every byte has an owner still."""

import ctypes
import gc
import threading

import pytest

from stratalloc import simulate

simulate.load("64MiB", devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from accounts import (after_backward, on_thread, rows, sums,  # noqa: E402,F401
                      total)
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc import _core  # noqa: E402
from stratalloc import _modules  # noqa: E402
from stratalloc import _scopes  # noqa: E402

SIZE = 64
WEIGHT = SIZE * SIZE * 4
DEEPEST = 256  # kMaxScopeDepth of accounting/scope_stack.h


def net(name, layers=2):
    return type(name, (nn.Sequential,), {})(
        *[nn.Linear(SIZE, SIZE, bias=False)
          for _ in range(layers)]).to("cuda")


def data(requires_grad=False):
    return torch.randn(8, SIZE, device="cuda", requires_grad=requires_grad)


def ones(count):
    """Bytes as torch counts them: a block is a multiple of 512."""
    return torch.ones(count * 128, device="cuda")


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


# ---- modules that change while they are walked --------------------------------

ASKED = {
    "report": stratalloc.report,
    "holders": lambda: stratalloc.holders(by="tensor"),
    "memory_summary": stratalloc.memory_summary,
}


@pytest.mark.parametrize("ask", ASKED)
def test_a_module_that_grows_and_shrinks_while_asked(ask):
    name = f"Changing_{ask}"
    model = net(name, layers=3)
    done = threading.Event()
    raised, answers = [], [0]

    def asking():
        try:
            while not done.is_set() or not answers[0]:
                ASKED[ask]()
                stratalloc.watch(model)
                answers[0] += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=asking)
    thread.start()
    try:
        for number in range(60):
            model.add_module(f"more{number}", nn.Linear(8, 8, device="cuda"))
            model[0].register_parameter(
                f"p{number}", nn.Parameter(ones(1)))
            model[1].register_buffer(f"b{number}", ones(1))
            model[2](data())
            if number % 2:
                for gone in (number - 1, number):
                    delattr(model, f"more{gone}")
                    delattr(model[0], f"p{gone}")
                    delattr(model[1], f"b{gone}")
    finally:
        done.set()
        thread.join()
    assert not raised, raised
    gc.collect()
    assert rows(name) == {(str(i), "parameter"): WEIGHT for i in range(3)}


class Vanishing(dict):
    """Loses what it was asked for, as if another thread had been faster."""

    def __contains__(self, name):
        found = super().__contains__(name)
        self.pop(name, None)
        return found


def test_a_parameter_that_goes_between_two_looks():
    model = net("Vanishing")
    owner = _modules.names()["Vanishing.0"]
    model[0].__dict__["_parameters"] = Vanishing(model[0]._parameters)
    weight = dict(model[0]._parameters)["weight"]
    assert _modules.owner(weight) in (owner, None)
    stratalloc.holders(by="tensor")
    del weight
    assert ("1", "parameter") in rows("Vanishing")


class Hostile(nn.Module):
    """Answers nobody who asks for what it is made of."""

    hostile = False

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x):
        return self.linear(x)

    def __getattribute__(self, name):
        if type(self).hostile and name in ("_parameters", "_buffers",
                                           "_modules", "named_children",
                                           "named_modules", "children"):
            raise ValueError("do not look at me")
        return super().__getattribute__(name)

    def __getattr__(self, name):
        if type(self).hostile:
            raise RuntimeError("nor for what is not there")
        return super().__getattr__(name)


def test_a_module_that_raises_when_it_is_looked_at():
    model = net("Around2", layers=1)
    model.add_module("hostile", Hostile())
    model.to("cuda")
    loss = model(data()).sum()
    Hostile.hostile = True
    try:
        loss.backward()
        for ask in ASKED.values():
            ask()
        stratalloc.watch(model)
        found = rows("Around2")
        model[0].add_module("late", nn.Linear(SIZE, SIZE, bias=False,
                                              device="cuda"))
        stratalloc.watch(model)
    finally:
        Hostile.hostile = False
    # Its own tensors were charged before; its gradient where it was computed.
    assert found["hostile.linear", "parameter"] == WEIGHT
    assert found["hostile.linear", "gradient"] == WEIGHT
    assert found["0", "gradient"] == WEIGHT
    assert rows("Around2")["0.late", "parameter"] == WEIGHT


def test_a_module_without_an_init_is_walked():
    class Half(nn.Module):
        def __init__(self):
            self.__dict__["here"] = 1  # and not nn.Module's

    model = net("Halved", layers=1)
    model._modules["half"] = Half.__new__(Half)
    stratalloc.watch(model)
    stratalloc.report()
    assert rows("Halved")["0", "parameter"] == WEIGHT


def test_a_module_that_is_deleted_during_the_walk():
    """The last reference to a child goes while its tree is named."""
    model = net("Deleted", layers=3)
    owners = _modules._installed.owners
    label = owners._label_own
    gone = []

    def labelling(module):
        if not gone and module is model._modules.get("1"):
            gone.append(model._modules.pop("2"))
            gone[:] = [1]  # the walk alone has it now
        label(module)

    owners._label_own = labelling
    try:
        stratalloc.watch(model)
    finally:
        owners._label_own = label
    gc.collect()
    assert gone and rows("Deleted") == {(str(i), "parameter"): WEIGHT
                                        for i in range(2)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit's
def test_a_script_module_is_asked_too():
    model = torch.jit.script(nn.Linear(SIZE, SIZE, bias=False)).to("cuda")
    model(data()).sum().backward()
    names = {row.name for row in stratalloc.holders(by="tensor").rows}
    assert "Linear.weight" in names
    del model


def test_a_module_that_has_no_length_is_asked_too():
    model = torch.compile(net("Lengthless")[0], backend="eager")
    with pytest.raises(TypeError, match="does not support len"):
        bool(model)
    stratalloc.watch(model)
    stratalloc.holders(by="tensor")
    del model
