# SPDX-License-Identifier: Apache-2.0
"""stratalloc.scope(), with a scope stack written in Python."""

import asyncio
import threading

import pytest
import torch
from fake_stack import FakeStack
from torch import nn

from stratalloc._ownership import modules as _modules
from stratalloc._native import stack as _stack
from stratalloc._native.stack import (ACTIVATION, BUFFER, LIFETIME_PERSISTENT,
                                      LIFETIME_TRANSIENT, LIFETIME_UNKNOWN,
                                      OPTIMIZER_STATE, UNKNOWN)
from stratalloc.scopes import scope


@pytest.fixture
def stack():
    fake = FakeStack()
    previous = _stack.use(fake)
    yield fake
    _modules.uninstall()
    _stack.use(previous)
    assert fake.depth() == 0, "frames left on the stack"
    assert fake.extra_pops == 0, "a pop without a push"


def test_with_statement_and_nesting(stack):
    with scope("outer"):
        assert stack.top() == ("outer", UNKNOWN, LIFETIME_UNKNOWN)
        with scope("inner"):
            assert stack.top()[0] == "outer/inner"
            with scope("third"):
                assert stack.top()[0] == "outer/inner/third"
        assert stack.top()[0] == "outer"
    assert stack.depth() == 0


def test_one_object_in_two_places(stack):
    shared = scope("shared")
    with shared:
        assert stack.top()[0] == "shared"
    with scope("a"), shared:
        assert stack.top()[0] == "a/shared"
        with shared:
            assert stack.top()[0] == "a/shared/shared"


def test_category_decides_the_lifetime(stack):
    with scope("cache", category="buffer"):
        assert stack.top() == ("cache", BUFFER, LIFETIME_PERSISTENT)
        with scope("part"):
            assert stack.top() == ("cache/part", BUFFER, LIFETIME_PERSISTENT)
        with scope("temporary", category="activation"):
            assert stack.top()[1:] == (ACTIVATION, LIFETIME_TRANSIENT)
        with scope("nothing", category="unknown"):
            assert stack.top()[1:] == (UNKNOWN, LIFETIME_UNKNOWN)
    with scope("moments", category="optimizer"):
        assert stack.top()[1] == OPTIMIZER_STATE


def test_exception_pops_and_passes(stack):
    with pytest.raises(KeyError), scope("a"):
        raise KeyError("planted")
    assert stack.depth() == 0


def test_decorator(stack):
    @scope("work")
    def work(n):
        """Doc."""
        if n:
            return work(n - 1)
        return stack.top()[0]

    assert work.__name__ == "work" and work.__doc__ == "Doc."
    assert work(0) == "work"
    assert work(2) == "work/work/work"
    assert stack.depth() == 0


def test_decorated_module_method(stack):
    class Model(nn.Module):
        @scope("attention")
        def forward(self, x):
            self.seen = stack.top()
            return x

    _modules.install()
    model = Model()
    model(torch.ones(1))
    assert model.seen == ("Model/attention", ACTIVATION, LIFETIME_TRANSIENT)


@pytest.mark.parametrize("name, error", [
    ("", ValueError), ("a\0b", ValueError), (None, TypeError),
    (b"a", TypeError), (3, TypeError)])
def test_bad_names(name, error):
    with pytest.raises(error, match="name must be"):
        scope(name)


@pytest.mark.parametrize("name", ["(no scope)", "(other scopes)"])
def test_names_that_reports_have_for_something_else(name):
    with pytest.raises(ValueError, match="use another name"):
        scope(name)


def test_bad_category_names_the_valid_ones():
    with pytest.raises(ValueError, match="'weights'.*parameter.*activation"):
        scope("a", category="weights")


def test_what_cannot_be_decorated():
    def generator():
        yield 1

    async def coroutine():
        pass

    async def both():
        yield 1

    for function in (generator, coroutine, both):
        with pytest.raises(TypeError, match="generator or coroutine"):
            scope("a")(function)
    with pytest.raises(TypeError, match="decorates functions"):
        scope("a")(dict)
    with pytest.raises(TypeError, match="decorates functions"):
        scope("a")("text")


def test_threads_start_empty(stack):
    seen = []

    def work():
        with scope("mine"):
            seen.append(stack.stack())

    with scope("theirs"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [["mine"]]


def _left_open(*_):
    scope("left").__enter__()


class Opens(nn.Linear):
    """Leaves a scope open wherever code of the program's runs."""

    def __init__(self):
        super().__init__(2, 2)
        _left_open()

    def _apply(self, function, recurse=True):
        _left_open()
        return super()._apply(function, recurse)


class OpensInStep(torch.optim.SGD):
    def step(self, closure=None):
        _left_open()


class Opening(nn.parameter.UninitializedParameter):
    @property
    def data(self):
        _left_open()
        return super().data

    @data.setter
    def data(self, value):
        nn.Parameter.data.__set__(self, value)


@pytest.mark.parametrize("inside", [
    Opens,
    lambda: Opens().half(),
    lambda: OpensInStep([nn.Parameter(torch.ones(2))], lr=1).step(),
    lambda: Opening().materialize((2, 2)),
    scope("outer")(_left_open),
], ids=["construction", "a move", "a step", "materialize", "a scope"])
def test_what_is_left_open_ends_with_what_it_is_in(stack, inside):
    _modules.install()
    with scope("around"):
        inside()
        assert "left" in str(stack.pushed), "it was opened"
        assert stack.stack() == ["around"]


@pytest.mark.parametrize("a, b", [
    (scope("A"), scope("B")), [scope("shared")] * 2,
])
def test_coroutines_that_leave_in_the_order_they_came(stack, a, b):
    async def work(mine, came, go):
        with mine:
            came.set()
            await go.wait()

    async def both():
        events = [asyncio.Event() for _ in range(4)]
        first = asyncio.create_task(work(a, *events[:2]))
        await events[0].wait()
        second = asyncio.create_task(work(b, *events[2:]))
        await events[2].wait()
        assert stack.depth() == 3
        events[1].set()
        await first
        events[3].set()
        await second

    with scope("around"):
        asyncio.run(both())
        assert stack.stack() == ["around"]


def test_a_scope_that_was_ended_takes_nobody_elses_frame(stack):
    a, b, c, d = [scope(name) for name in "abcd"]
    a.__enter__(), b.__enter__()
    a.__exit__()
    with c, d:
        b.__exit__()
        assert stack.stack() == ["c", "c/d"]


def test_under_compile_it_is_not_there(stack):
    torch._dynamo.reset()

    @scope("decorated")
    def double(x):
        return x * 2

    def function(x):
        with scope("inside"):
            x = x + 1
        return double(x)

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(3)
    assert torch.equal(compiled(x), function(x))
    del stack.pushed[:]
    compiled(x)
    assert stack.pushed == []


def test_repr():
    assert repr(scope("a")) == "stratalloc.scope('a')"
