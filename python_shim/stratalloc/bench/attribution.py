# SPDX-License-Identifier: Apache-2.0
"""What knowing whose memory it is costs, against the same without it.

Per module call, per autograd node, per malloc; and of a training step of a
small transformer, once measured whole, everything on against everything off,
and once as the sum of its parts. On meta tensors nothing is computed, but torch
works out many shapes in Python, many times as slowly as the CPU computes the
values: there the step is measured, too, and our share is the larger one. The
step's mallocs are counted on the device, where it runs as well.

Runs in the worker; attribution_lines.py has the lines. All times are the
thread's processor time, on and off by turns.
"""

import ctypes
import gc
import time

from stratalloc.bench import library

_TURNS = 10  # pairs of each round
_RUNS = 5  # of a turn, of which the fastest counts
_CALLS = 500
_NODES = 500
_LEAVES = 200
_MALLOCS = 2000
_LAYERS, _WIDTH, _HEADS, _TOKENS = 4, 64, 4, 8


def measure(torch, what):
    """A round: {"ours": [...], "without": [...]}, nanoseconds, pair by pair."""
    gc.collect()
    gc.disable()
    try:
        return _WORKS[what](torch)
    finally:
        gc.enable()


def _by_turns(one, turns=_TURNS):
    """one(True) and one(False), each first in every second pair.

    Once before, because the first one touches code and memory.
    """
    one(True), one(False)
    taken = {True: [], False: []}
    for turn in range(turns):
        for on in ((True, False) if turn % 2 == 0 else (False, True)):
            taken[on].append(one(on))
    return {"ours": taken[True], "without": taken[False]}


def _fastest(work):
    """A turn is for what the code takes, not for what interrupts it."""
    def run():
        start = time.thread_time_ns()
        work()
        return time.thread_time_ns() - start

    return min(run() for _ in range(_RUNS))


def _calls(modules):
    """A module that returns its argument, called with and without wrapper."""
    def one(on):
        module = modules[on]

        def calls():
            for _ in range(_CALLS):
                module(1)

        return _fastest(calls) / _CALLS

    return _by_turns(one)


def _same_and_plain(torch):
    class Same(torch.nn.Module):
        def forward(self, value):
            return value

    class Plain(Same):
        __call__ = torch.nn.Module._wrapped_call_impl

    return {True: Same(), False: Plain()}


def _module(torch):
    """One inside a model."""
    import stratalloc

    modules = _same_and_plain(torch)
    model = torch.nn.ModuleList(modules.values())
    stratalloc.watch(model)
    return _calls(modules)


def _root(torch):
    """The model itself: what comes in from outside is looked at, too."""
    return _calls(_same_and_plain(torch))


# Who follows backward's nodes.
_NOBODY, _BRIDGE, _EMPTY = range(3)


def _follow_backward(who):
    library.call("follow_backward", who)


def _backward_by_turns(end, nodes, other=_NOBODY):
    """The nodes that end here, followed by us and by another, on this thread."""
    def one(on):
        _follow_backward(_BRIDGE if on else other)
        try:
            return _fastest(
                lambda: end.backward(retain_graph=True)) / nodes
        finally:
            _follow_backward(_BRIDGE)

    return _by_turns(one)


def _chain(torch):
    """A value behind so many nodes, two of each scope."""
    from stratalloc._native import _scopes
    from stratalloc._native import stack as _stack

    value = torch.ones(1, requires_grad=True)
    for i in range(_NODES // 2):
        _scopes.push(_scopes.intern(f"bench.{i}"), _stack.ACTIVATION,
                     _stack.LIFETIME_TRANSIENT)
        value = value.view(1).view(1)
        _scopes.pop()
    return value


def _node(torch):
    """A node, of a chain."""
    return _backward_by_turns(_chain(torch), _NODES)


def _node_ours(torch):
    """The same beside one whose callback does nothing: torch's own price."""
    return _backward_by_turns(_chain(torch), _NODES, other=_EMPTY)


def _leaf(torch):
    """A node that gives a leaf its gradient."""
    leaves = [torch.ones(1, requires_grad=True) for _ in range(_LEAVES)]
    return _backward_by_turns(torch.cat(leaves).sum(), _LEAVES)


def _account(torch):
    """Accounts of a malloc and its free, in a scope that lasts."""
    del torch
    return _in_the_library("account_pairs")


def _first(torch):
    """What a scope's first malloc, and its free, take more."""
    del torch
    return _in_the_library("scoped_pairs")


def _in_the_library(name):
    taken = ctypes.c_double()

    def one(on):
        def pairs():
            library.call(name, int(on), _MALLOCS, ctypes.byref(taken))
            return taken.value

        return min(pairs() for _ in range(_RUNS)) / _MALLOCS

    return _by_turns(one)


class _Training:
    """A training step of a small transformer, of torch's own modules."""

    def __init__(self, torch, device):
        layer = torch.nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True)
        self.model = torch.nn.TransformerEncoder(
            layer, _LAYERS, enable_nested_tensor=False).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batch = torch.ones(1, _TOKENS, _WIDTH, device=device)

    def loss(self):
        return self.model(self.batch).mean()

    def step(self):
        """Nanoseconds of all of it, and of the optimizer's step."""
        start = time.thread_time_ns()
        self.loss().backward()
        stepping = time.thread_time_ns()
        self.optimizer.step()
        stepped = time.thread_time_ns()
        self.optimizer.zero_grad()
        return time.thread_time_ns() - start, stepped - stepping


def _step(torch, device, steps, turns):
    """All of ours on and off: {"whole": ..., "optimizer": ...}."""
    from stratalloc._ownership import modules as _modules

    training = _Training(torch, device)

    def one(on):
        (_modules.install if on else _modules.uninstall)()
        _follow_backward(_BRIDGE if on else _NOBODY)
        try:
            for _ in range(2):
                training.step()
            taken = [training.step() for _ in range(steps)]
        finally:
            _follow_backward(_BRIDGE)
            _modules.install()
        return [min(column) for column in zip(*taken)]

    taken = _by_turns(one, turns)
    return {part: {side: [each[i] for each in values]
                   for side, values in taken.items()}
            for i, part in enumerate(("whole", "optimizer"))}


def _step_meta(torch):
    # torch computes the shapes of some operators in Python there.
    return _step(torch, "meta", steps=2, turns=4)


def _step_cpu(torch):
    return _step(torch, "cpu", steps=10, turns=_TURNS)


def counts(torch, device):
    """How often each part occurs in a step, and that it is really there.

    Raises: RuntimeError where the step entered no scope, or a node of it found
    none; then there is nothing to measure.
    """
    training = _Training(torch, device)
    training.step()
    with _counted_modules() as modules:
        training.step()
    unknown = _nodes_without_scope()
    nodes, leaves = _nodes_below(training.loss().grad_fn)
    training.step()
    if modules[0] == 0:
        raise RuntimeError(f"a step on {device} entered no module's scope")
    if _nodes_without_scope() != unknown:
        raise RuntimeError(f"nodes of a step on {device} found no scope")
    on_cuda = _Training(torch, "cuda")
    on_cuda.step()
    on_cuda.step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    on_cuda.step()
    after = torch.cuda.memory_stats()["allocation.all.allocated"]
    return {"modules": modules[0] - 1, "roots": 1, "nodes": nodes,
            "leaves": leaves, "mallocs": after - before}


class _counted_modules:
    """How often a module's scope was entered meanwhile: a list of one."""

    def __enter__(self):
        from stratalloc._native import stack as _stack
        from stratalloc._ownership import modules as _modules

        self._modules, self._stack = _modules, _stack
        entered = [0]
        functions = _stack.functions()

        class Counting:
            def __getattr__(self, name):
                return getattr(functions, name)

            def enter(self, scope):
                entered[0] += 1
                return functions.enter(scope)

        self._use(Counting())
        return entered

    def __exit__(self, *exception):
        self._use(None)

    def _use(self, functions):
        self._modules.uninstall()
        self._stack.use(functions)
        self._modules.install()


def _nodes_without_scope():
    import stratalloc

    return stratalloc.report()["nodes_without_scope"]


def _nodes_below(root):
    """(those with a number, those of leaves) of the graph that ends here."""
    seen, left, leaves = {root}, [root], 0
    while left:
        node = left.pop()
        leaves += node.name() == "torch::autograd::AccumulateGrad"
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                left.append(following)
    return len(seen) - leaves, leaves


_WORKS = {"module": _module, "root": _root, "node": _node,
          "node_ours": _node_ours, "leaf": _leaf, "account": _account,
          "first": _first, "step_meta": _step_meta, "step_cpu": _step_cpu}
