# SPDX-License-Identifier: Apache-2.0
"""Answers on one thread while another trains.

Each is a process of its own: what goes wrong here is a segmentation fault.
"""

import textwrap

import pytest

from bazel import programs

HEAD = """
import sys, threading
from stratalloc import simulate
simulate.load("64MiB")
import torch, stratalloc
from torch import nn
assert stratalloc.enable(host_budget="1GiB", disk_budget=0)
sys.setswitchinterval(1e-5)  # as many changes of thread as Python makes

model = type("Trained", (nn.Sequential,), {})(
    *[nn.Linear(16, 16, bias=False) for _ in range(4)]).cuda()
x = torch.ones(4, 16, device="cuda")
done, steps = threading.Event(), [0]

def while_it_trains(step, ask):
    def train():
        while not done.is_set():
            step()
            steps[0] += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(int(sys.argv[1])):
            ask()
        while not steps[0]:
            ask()
    finally:
        done.set()
        thread.join()
"""


_ASKED = pytest.mark.parametrize("times", [
    500, pytest.param(3000, marks=pytest.mark.long)])


def run(program, times=1):
    done = programs.run("-c", HEAD + textwrap.dedent(program), str(times))
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])


@pytest.mark.parametrize("answer", [
    "holders()", "holders(by='tensor')", "report()", "mark()",
    "residency(model)"])
@_ASKED
def test_gradients_that_go(answer, times):
    run(f"""
        def step():
            model(x).sum().backward()
            model.zero_grad(set_to_none=True)

        while_it_trains(step, lambda: stratalloc.{answer})
        """, times)


@_ASKED
def test_state_buffers_and_storages_that_are_replaced(times):
    """By a step, by hand and below a tensor: what an answer reads it holds."""
    run("""
        optimizer = torch.optim.Adam(model.parameters())
        model[0].register_buffer("mean", torch.ones(16, device="cuda"))

        def step():
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            model[0].mean = torch.ones(16, device="cuda")
            for parameter, state in optimizer.state.items():
                state["exp_avg"] = torch.zeros_like(parameter)
                parameter.data = parameter.data.clone()

        while_it_trains(step, lambda: stratalloc.holders(by="tensor"))
        """, times)


def test_a_storage_is_looked_at_with_the_gil():
    """Else `tensor.data = other` comes between: too seldom to wait for it."""
    run("""
        import ctypes
        from stratalloc._native import bridge as _bridge

        flags = _bridge._storages._flags_
        assert flags & ctypes._FUNCFLAG_PYTHONAPI, flags
        """)
