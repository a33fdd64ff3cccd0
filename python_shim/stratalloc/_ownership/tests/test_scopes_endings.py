# SPDX-License-Identifier: Apache-2.0
"""A process that ends or forks inside of scopes, on whatever thread.

Each program is a process of its own. A child that waits for a lock that nobody
will let go of is killed by its alarm, and its program fails.
"""

import textwrap

import pytest

from bazel import programs

HEAD = """
import atexit, gc, os, signal, sys, threading, traceback
from stratalloc import simulate
simulate.load("64MiB")
import torch, stratalloc
from torch import nn
from stratalloc._native import _scopes
assert stratalloc.enable(host_budget="1GiB", disk_budget=0)

def net(name="Net"):
    return type(name, (nn.Sequential,), {})(
        nn.Linear(64, 64, bias=False), nn.ReLU(),
        nn.Linear(64, 64, bias=False)).cuda()

def rows(name):
    return {(row.name, row.category): row.bytes
            for row in stratalloc.holders().rows if row.name.startswith(name)}

# Found before threads run: what another one is importing when the process forks
# is locked in the child for ever, and that is Python's.
stratalloc.scope, stratalloc.holders, stratalloc.report

def in_a_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the child ended with {status}"

def on_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread
"""


def run(program, code=0):
    """What it printed; it must end by itself, with this exit code."""
    done = programs.run("-c", HEAD + textwrap.dedent(program), merged=True)
    assert done.returncode == code, done.stdout[-6000:]
    for word in ("terminate called", "Fatal Python error", "ranked"):
        assert word not in done.stdout, done.stdout[-6000:]
    return done.stdout


INSIDE = {
    "a scope": "stratalloc.scope('Open').__enter__()",
    "scopes with live tensors": """
        kept = []
        for depth in range(300):
            stratalloc.scope("Open", category="activation").__enter__()
            kept.append(torch.ones(999, device="cuda"))""",
    "a module": """
        class Ends(nn.Module):
            def forward(self, x):
                self.kept = x * 2
                sys.exit(7)
        Ends()(torch.ones(9, device="cuda"))""",
    "backward": """
        def end(gradient):
            sys.exit(7)
        model = net()
        out = model(torch.ones(9, 64, device="cuda"))
        model[0].weight.register_hook(end)
        try:
            out.sum().backward()
        except SystemExit:
            # Its thread is done with the exception then: else it may want the
            # GIL of an interpreter that has ended, and torch aborts, under its
            # own allocator in 7 of 9 runs.
            torch.ones(3, device="cuda", requires_grad=True).sum().backward()
            raise""",
    "an exit handler": """
        model = net()
        scope = stratalloc.scope("AtExit")
        def at_exit():
            scope.__enter__()
            model(torch.ones(9, 64, device="cuda")).sum().backward()
            stratalloc.report()
        atexit.register(at_exit)""",
    "a finalizer": """
        class Late:
            def __del__(self):
                with self.scope:
                    self.x.mul(2)
                print("finalized")
        cycle = Late()
        cycle.x = torch.ones(9, device="cuda")
        cycle.me = cycle
        cycle.scope = stratalloc.scope("Late")""",
}


@pytest.mark.parametrize("where", INSIDE)
def test_the_interpreter_ends_inside(where):
    program = textwrap.dedent(INSIDE[where])
    code = 7 if "sys.exit(7)" in program else 0
    out = run(program, code)
    assert "Traceback" not in out, out
    assert ("finalized" in out) == (where == "a finalizer"), out


@pytest.mark.parametrize("does", [
    "forever.wait()",
    "[None for _ in iter(int, 1) if changes()]",
])
def test_a_daemon_thread_is_inside_of_a_module(does):
    """It waits there, or goes in and out of scopes, until the interpreter takes
    the GIL away for good. (One that is in an operator of torch's when it comes
    back for the GIL ends the process with or without us.)"""
    out = run("""
    inside, forever = threading.Event(), threading.Event()
    number = 0

    def changes():
        global number
        number += 1
        with stratalloc.scope(f"more {number %% 1000}", category="activation"):
            pass

    class Stays(nn.Module):
        def forward(self, x):
            kept = x * 2
            inside.set()
            %s

    x = torch.ones(9, 64, device="cuda")
    threading.Thread(target=Stays(), args=(x,), daemon=True).start()
    inside.wait()
    stratalloc.scope("Main").__enter__()
    kept = net()(x)
    assert rows("Stays")["Stays", "temporary"] == x.nbytes + 512 - x.nbytes %% 512
    print("ends")
    """ % does)
    assert out.splitlines()[-1] == "ends", out


def test_a_child_that_was_forked_inside_of_a_scope():
    """It has its parent's frames, and leaves them as its parent does."""
    run("""
    model = net("Parent")
    with stratalloc.scope("Around", category="activation"):
        kept = torch.ones(999, device="cuda")
        inside = _scopes.current()

        def child():
            assert _scopes.current() == inside
            with stratalloc.scope("more"):
                assert _scopes.name(_scopes.current()[0]) == "Around/more"
            on_cpu = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            on_cpu(torch.ones(2, 4))
            on_cpu.half().float()
            assert _scopes.current() == inside
            assert _scopes.pop() and not _scopes.pop()
            torch.optim.Adagrad(on_cpu.parameters()).step()
            model.load_state_dict  # and nothing of it on a device
            del kept_by_child[:]
            gc.collect()

        kept_by_child = [torch.ones(999, device="cuda")]
        in_a_child(child)
        assert _scopes.current() == inside
        more = torch.ones(999, device="cuda")
    assert _scopes.current() == (0, 0, 0)
    found = rows("Around")
    assert found == {("Around", "activation"): 3 * 4096}, found
    """)


@pytest.mark.parametrize("forks", [
    15, pytest.param(150, marks=pytest.mark.long)])
def test_a_fork_while_another_thread_interns_names(forks):
    """Whatever lock of names or nodes it holds is not the child's to wait for."""
    run(f"    forks = {forks}" + """
    stop = threading.Event()

    def intern():
        number = 0
        while not stop.is_set():
            number += 1
            _scopes.intern(f"name {number % 5000}")

    # Made and called before anybody forks: a lock of torch's random numbers,
    # or of what its operators look up at their first call, held by another
    # thread, would be the child's to wait for.
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model(torch.ones(2, 4))

    def call():
        while not stop.is_set():
            model(torch.ones(2, 4))

    threads = [on_thread(intern), on_thread(intern), on_thread(call)]

    def child():
        for number in range(20):
            _scopes.intern(f"child {number}")
        with stratalloc.scope(f"In the child"):
            nn.Linear(4, 4)(torch.ones(2, 4))
        on_thread(lambda: nn.Linear(4, 4)(torch.ones(2, 4))).join()

    try:
        for _ in range(forks):
            in_a_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    """)


@pytest.mark.parametrize("forks", [
    15, pytest.param(40, marks=pytest.mark.long)])
def test_a_fork_during_backward_on_another_thread(forks):
    run(f"    forks = {forks}" + """
    model = net("Busy")
    stop = threading.Event()
    steps = []

    def train():
        while not stop.is_set():
            with stratalloc.scope("Trainer"):
                model(torch.ones(9, 64, device="cuda")).sum().backward()
            steps.append(1)

    thread = on_thread(train)

    def child():
        assert _scopes.current() == (0, 0, 0)
        # Autograd's engine is locked in the child, if it was working: torch's.
        with stratalloc.scope("Child"), torch.no_grad():
            nn.Linear(4, 4)(torch.ones(2, 4))
        model.zero_grad()
        gc.collect()

    try:
        for _ in range(forks):
            in_a_child(child)
    finally:
        stop.set()
        thread.join()
    assert len(steps) > 1
    model.zero_grad()
    del thread
    gc.collect()
    found = rows("Busy")
    assert found == {("Busy.0", "parameter"): 16384,
                     ("Busy.2", "parameter"): 16384}, found
    """)


def test_a_fork_inside_of_a_module_and_of_backward():
    """On the thread that forks: the child's frames are left by its exceptions."""
    run("""
    class Forks(nn.Module):
        def forward(self, x):
            y = x * 2

            def child():
                with stratalloc.scope("inner"):
                    nn.Linear(4, 4)(torch.ones(2, 4))

            in_a_child(child)
            return y

    def in_backward(gradient):
        def child():
            with stratalloc.scope("inner"):
                pass
            gc.collect()

        in_a_child(child)

    model = nn.Sequential(nn.Linear(64, 64), Forks()).cuda()
    model[0].weight.register_hook(in_backward)
    for _ in range(3):
        model(torch.ones(9, 64, device="cuda")).sum().backward()
    assert _scopes.current() == (0, 0, 0)
    gradients = rows("Sequential.0")["Sequential.0", "gradient"]
    assert gradients == 64 * 64 * 4 + 512, gradients
    """)
