# SPDX-License-Identifier: Apache-2.0
"""The level `full`: every allocation of a program has its whole Python stack, in
recordings and in what other tools open."""

import importlib
import os
import pickle
import re
import sys
import textwrap
import threading

import pytest

from bazel import programs
from stratalloc import simulate

simulate.load("256MiB")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc.telemetry import identities, model, recording  # noqa: E402
from stratalloc.telemetry.analysis import lines, owners  # noqa: E402
from stratalloc.telemetry.exports import snapshot, speedscope  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402

SMALL = 512
MOST_FRAMES = 64  # of call_stack.h


@pytest.fixture(scope="module", autouse=True)
def enabled():
    assert stratalloc.enable(host_budget="1GiB", disk_budget=0,
                             telemetry="full")
    torch.cuda.init()


def frames():
    """(file, line, function) of the caller and of those that called it."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append((code.co_filename, frame.f_lineno,
                      getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    return found


def made(size=SMALL):
    """A tensor, and the stack that it is from, of one line."""
    return torch.empty(size, dtype=torch.uint8, device="cuda"), frames()


def on_a_thread(work):
    """What it returns; below it is nothing of pytest's."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def allocs(run):
    return run.events[run.events["kind"] == Kind.ALLOC]


def chain(run, event):
    return [(one.file, one.line, one.function)
            for one in run.stack(int(event["site"]))]


class Layer(nn.Module):
    def forward(self, x):
        return made(1000)


def test_every_allocation_has_its_callers():
    """Small ones, too, through torch's modules, on two threads."""
    net = nn.Sequential(Layer())

    def work():
        return [net(None), made(), *[made(2048) for _ in range(100)]]

    with stratalloc.trace() as trace:
        told = [on_a_thread(work), on_a_thread(work)]
    run = trace.run()
    assert identities.check(run) == []
    assert run.level == "full" and run.stacks_lost == 0
    events = allocs(run)
    assert len(events) == 204
    expected = [stack for one in told for _, stack in one]
    assert [chain(run, event) for event in events] == expected
    assert len(expected[0]) > len(expected[1])
    assert any("torch/nn/modules" in file for file, _, _ in expected[0])
    threads = events["thread"].tolist()
    assert len(set(threads)) == 2
    # Frees know it, too.
    del told
    assert (run.events["site"][run.events["kind"] <= Kind.FREE_COMPLETED]
            > 0).all()


def test_holders_tell_the_users_line():
    """Of many stacks with one line one row, as at callsites."""
    def one():
        return made(1 << 20)

    def other():
        return made(1 << 20)

    before = {row.name: row.bytes for row in stratalloc.holders(by="site").rows}
    with stratalloc.trace() as trace:
        kept = [one(), other(), other()]
    found = stratalloc.holders(by="site")
    rows = {row.name: row.bytes - before.get(row.name, 0)
            for row in found.rows
            if row.bytes != before.get(row.name, 0)}
    line = made.__code__.co_firstlineno + 2
    (name, size), = rows.items()
    assert re.fullmatch(rf".*test_stacks\.py:{line} made", name)
    assert size == 3 << 20
    assert found.total == sum(row.bytes for row in found.rows) == \
        stratalloc.stats()["live"]
    run = trace.run()
    assert len(set(allocs(run)["site"].tolist())) == 2
    held = {row.name: row.bytes for row in owners.tree(run, by="site").rows}
    assert held[f"{__file__}:{line}"] == 3 << 20
    del kept


def test_the_users_line_inside_of_a_library():
    """What torch allocates is the user's who called it."""
    with stratalloc.trace() as trace:
        kept = nn.Linear(64, 64).to("cuda")  # moved
    run = trace.run()
    for event in allocs(run):
        site = run.sites[event["site"]]
        assert "torch/nn/modules/module.py" in site.file
        own = run.sites[site.own]
        assert own.file == __file__
        assert own.function == "test_the_users_line_inside_of_a_library"
    del kept


def test_a_deep_stack_says_that_it_was_cut(tmp_path, monkeypatch):
    """By its innermost frames; the user's line is there however deep."""
    def down(depth):
        return down(depth - 1) if depth else made()

    with stratalloc.trace() as trace:
        _, stack = on_a_thread(lambda: down(200))
    run = trace.run()
    found = chain(run, allocs(run)[0])
    assert found[:MOST_FRAMES] == stack[:MOST_FRAMES]
    assert [one[2] for one in found[MOST_FRAMES:]] == ["(frames left out)"]

    # Deep in a library, called by the user.
    (tmp_path / "deep_library.py").write_text(textwrap.dedent("""
        import torch
        def down(depth):
            if depth:
                return down(depth - 1)
            return torch.empty(512, device="cuda")
    """))
    monkeypatch.syspath_prepend(str(tmp_path))
    from stratalloc._ownership import sites as _sites
    from stratalloc._native import _frames

    deep = importlib.import_module("deep_library")
    try:
        _frames.begin([*_sites.libraries(torch), str(tmp_path)])
        with stratalloc.trace() as trace:
            kept = deep.down(100)
    finally:
        _frames.begin(_sites.libraries(torch))
    run = trace.run()
    event, = allocs(run)
    found = chain(run, event)
    assert [one[2] for one in found] == [
        *["down"] * MOST_FRAMES, "(frames left out)",
        "test_a_deep_stack_says_that_it_was_cut"]
    own = run.sites[run.sites[event["site"]].own]
    assert (own.file, own.line, own.function) == found[-1]
    del kept


def test_levels_are_switched_while_threads_allocate():
    """What is told is what the level of that moment says, or none."""
    done, problems = threading.Event(), []

    def work():
        try:
            while not done.is_set():
                made(256)
        except Exception as error:  # told below
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    with stratalloc.trace() as trace:
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                for level in ("callsites", "full", "events", "full"):
                    stratalloc.telemetry_level(level)
                    kept = torch.empty(SMALL, device="cuda")
                    del kept
        finally:
            done.set()
            for thread in threads:
                thread.join()
            stratalloc.telemetry_level("full")
    assert not problems
    run = trace.run()
    assert identities.check(run) == []
    ours = [chain(run, event) for event in allocs(run)
            if event["bytes"] == 4 * SMALL]
    assert len(ours) == 40
    deep = [len(one) > 5 for one in ours]
    assert deep == [False, True, False, True] * 10
    assert [len(one) for one in ours[2::4]] == [0] * 10


def test_the_viewer_and_flame_graphs_show_whole_stacks(tmp_path):
    with stratalloc.trace() as trace:
        kept, stack = on_a_thread(made)
    run = trace.run()
    file, line, function = stack[0]
    assert (file, function) == (__file__, "made")

    path = tmp_path / "s.pickle"
    snapshot.write(run, path)
    read = pickle.loads(path.read_bytes())
    event, = [one for one in read["device_traces"][0]
              if one["action"] == "alloc" and one["size"] == SMALL]
    assert [(one["filename"], one["line"], one["name"])
            for one in event["frames"]] == stack
    block, = [block for segment in read["segments"]
              for block in segment["blocks"]
              if block["address"] == kept.data_ptr()]
    assert [one["name"] for one in block["frames"]] == [
        one[2] for one in stack]

    shown = speedscope.build(run)
    names = [one["name"] for one in shown["shared"]["frames"]]
    churn, = [one for one in shown["profiles"]
              if one["name"] == "churn cuda:0"]
    told = [[names[one] for one in sample] for sample in churn["samples"]]
    assert told == [["cuda:0", "unknown", "(no scope)",
                     *[one[2] for one in reversed(stack)]]]


def test_redacted_has_no_stacks(tmp_path):
    path = tmp_path / "r.strata"
    with stratalloc.trace(path, redact=True):
        kept, _ = made()
    data = path.read_bytes()
    assert b"test_stacks" not in data and b"test_redacted" not in data
    run = recording.read(str(path))
    event = allocs(run)[0]
    assert event["site"] and run.sites[event["site"]].function.startswith(
        "site #")
    assert run.sites[event["site"]].below == 0
    del kept


def test_nodes_of_autograd_are_their_scopes():
    class Doubles(nn.Module):
        def forward(self, x):
            return x * 2

    x = torch.ones(1024, device="cuda", requires_grad=True)
    out = Doubles()(x).sum()
    with stratalloc.trace() as trace:
        out.backward()
    run = trace.run()
    names = {run.sites[one].function for one in
             np.unique(allocs(run)["site"]).tolist()}
    assert "(backward of Doubles)" in names


def test_backward_of_librarys_function_is_its_layer(tmp_path, monkeypatch):
    from stratalloc._ownership import sites as _sites
    from stratalloc._native import _frames

    (tmp_path / "installed_function.py").write_text(textwrap.dedent("""
        import torch
        class Doubles(torch.autograd.Function):
            kept = []
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                Doubles.kept.append(torch.ones(128, device="cuda"))
                return g * 2
    """))
    (tmp_path / "installed_function-1.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    from installed_function import Doubles

    class Calls(nn.Module):
        def forward(self, x):
            return Doubles.apply(x)

    x = torch.ones(8, device="cuda", requires_grad=True)
    try:
        _frames.begin(_sites.libraries(torch))
        out = Calls()(x).sum()
        with stratalloc.trace() as trace:
            out.backward()
            Doubles.apply(x).sum().backward()  # of no layer
        run = trace.run()
        found = {lines.line(run, one) for one in np.unique(
            allocs(run)["site"][allocs(run)["bytes"] == SMALL])}
        assert "(backward of Calls)" in found
        assert any("torch/autograd/function.py" in one for one in found)
        assert not any(os.path.dirname(stratalloc.__file__) in one
                       for one in found)
    finally:
        monkeypatch.undo()
        _frames.begin(_sites.libraries(torch))


def program(tmp_path, body, fresh=False, **environment):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent("""
        from stratalloc import simulate
        simulate.load("64MiB")
        import stratalloc, torch
        stratalloc.enable(host_budget=0, disk_budget=0, telemetry="full")
        torch.cuda.init()
    """) + textwrap.dedent(body))
    done = programs.run(path, cwd=tmp_path, fresh=fresh,
                        env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_of_stacks_is_bounded_and_what_is_beyond_is_counted(tmp_path):
    """Whose stack has no number any more has its line; who had one keeps it."""
    out = program(tmp_path, """
        from stratalloc._native import core as _core
        names = {"torch": torch}
        code = compile("torch.empty(512, dtype=torch.uint8, device='cuda')",
                       "generated.py", "eval")
        def run(line):
            return eval(code.replace(co_firstlineno=line), names)
        trace, kept = stratalloc.trace("end.strata"), []
        for i, line in enumerate([*range(1, 60001), 7, 60001]):
            if i == 60000:
                trace.__enter__()
            made = run(line)
            if i >= 60000:
                kept.append(made)
        trace.__exit__()
        said = _core.sites(0)
        assert said["calls"] == 49149, said["calls"]
        assert said["calls_refused"] > 10000
        print(said["calls_refused"])
    """, fresh=True)  # which looks at the outermost frame
    run = recording.read(str(tmp_path / "end.strata"))
    assert run.stacks_lost == 1 < int(out)  # line 60001; others came before
    early, late = [chain(run, event) for event in allocs(run)]
    assert [one[2] for one in early] == ["<module>", "run", "<module>"]
    assert early[0][:2] == ("generated.py", 7)
    assert late == [("", 0, "(other sites)")]


def test_codes_that_come_and_go_are_kept_apart(tmp_path):
    """The address of one that is gone is the next one's."""
    program(tmp_path, """
        from stratalloc.telemetry.model import Kind
        def make(i):
            names = {"torch": torch}
            exec(compile(f"def f{i}(): return torch.empty(512, device='cuda')",
                         "made.py", "exec"), names)
            return names[f"f{i}"]
        with stratalloc.trace() as trace:
            for i in range(20000):
                make(i)()
        run = trace.run()
        events = run.events[run.events["kind"] == Kind.ALLOC]
        told = [run.sites[one].function for one in events["site"].tolist()]
        assert told == [f"f{i}" for i in range(20000)], told[:5]
    """)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
