# SPDX-License-Identifier: Apache-2.0
"""Sites: the line of user code that allocated what lives."""

import gc
import os
import re
import sys
import textwrap
import threading

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import stratalloc  # noqa: E402

KIB = 1 << 10
BIG = 256 * KIB  # always sampled
HERE = __file__


@pytest.fixture(scope="module", autouse=True)
def enabled():
    assert stratalloc.enable(host_budget="1GiB", disk_budget=0,
                             telemetry="callsites")
    torch.cuda.init()


@pytest.fixture(autouse=True)
def _sums():
    """Whatever a test did, rows add up to what torch says."""
    gc.collect()
    yield
    gc.collect()
    found = stratalloc.holders(by="site")
    assert found.total == sum(row.bytes for row in found.rows)
    assert found.total == stratalloc.stats()["live"]
    assert (sum(row.bytes for row in found.rows if row.tier == "device")
            == torch.cuda.memory_allocated())


def sites(line=None, **more):
    """{(line, function): bytes} of this file, or of one line of it."""
    found = {}
    for row in stratalloc.holders(by="site", **more).rows:
        match = re.fullmatch(r"(.*):(\d+) (.*)", row.name, re.DOTALL)
        if match and os.path.basename(match[1]) == os.path.basename(HERE):
            key = int(match[2]), match[3]
            found[key] = found.get(key, 0) + row.bytes
    if line is None:
        return found
    return {function: size for (at, function), size in found.items()
            if at == line}


def marked(mark, of=HERE):
    """The number of the line that ends with `# mark`."""
    with open(of, encoding="utf-8") as file:
        lines, = [[i for i, text in enumerate(file, 1)
                   if text.rstrip().endswith(f"# {mark}")]]
    line, = lines
    return line


def empty(size=BIG):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def test_a_tensor_is_its_lines():
    mine = torch.empty(BIG, dtype=torch.uint8, device="cuda")  # direct
    assert sites(marked("direct")) == {"test_a_tensor_is_its_lines": BIG}
    row, = [row for row in stratalloc.holders(by="site").rows
            if row.name.endswith(":%d test_a_tensor_is_its_lines"
                                 % marked("direct"))]
    assert (row.bytes, row.count, row.tier) == (BIG, 1, "device")
    del mine
    assert not sites(marked("direct"))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        x = self.linear(x)  # linear
        return torch.relu(x)  # relu


def test_an_activation_is_its_layers_line():
    model = nn.Sequential(Layer(), Layer()).cuda()  # moved
    x = torch.randn(256, 256, device="cuda")
    out = model(x)
    # What lives is relu's results, one of each layer.
    assert sites(marked("relu")) == {"Layer.forward": 2 * BIG}
    assert not sites(marked("linear"))
    assert sites(marked("moved")) == {
        "test_an_activation_is_its_layers_line": 2 * BIG}
    found = {row.category for row in stratalloc.holders(by="site").rows
             if ":%d " % marked("relu") in row.name}
    assert found == {"activation"}
    del out


def test_lambdas_comprehensions_and_generators():
    make = lambda: empty_here()  # noqa: E731

    def empty_here():
        return torch.empty(BIG, dtype=torch.uint8, device="cuda")  # inner

    kept = make()
    assert sites(marked("inner")) == {
        "test_lambdas_comprehensions_and_generators.<locals>.empty_here": BIG}
    direct = (lambda: torch.empty(BIG, device="cuda"))()  # lambda
    (function, size), = sites(marked("lambda")).items()
    assert function.endswith("<lambda>") and size == 4 * BIG
    listed = [torch.empty(BIG, dtype=torch.uint8, device="cuda")  # listed
              for _ in range(3)]
    # A frame of its own before Python 3.12.
    (function, size), = sites(marked("listed")).items()
    assert size == 3 * BIG and "test_lambdas" in function
    del kept, direct, listed


def test_code_run_through_exec():
    names = {"torch": torch}
    exec("import os\nmade = torch.empty(1 << 20, dtype=torch.uint8, "
         "device='cuda')\n", names)
    found = {row.name: row.bytes for row in stratalloc.holders(by="site").rows}
    assert found["<string>:2 <module>"] == 1 << 20
    names.clear()


def test_a_list_that_leaks_is_named():
    kept = []
    with stratalloc.leaks(steps=16, on="call") as found:
        for _ in range(16):
            temporary = empty()
            kept.append(temporary.clone())  # leaks
            del temporary
            found.step()
    row, = found.sites
    assert row.name.endswith(
        ":%d test_a_list_that_leaks_is_named" % marked("leaks"))
    assert row.per_step == BIG and row.bytes == row.count * BIG
    assert f"allocated at {row.name} (unknown): 1.50 MiB in 6" in str(found)
    del kept


def test_a_leak_of_small_blocks_is_named():
    kept = []
    with stratalloc.leaks(steps=16, on="call") as found:
        for _ in range(16):
            kept += [torch.ones(1000, device="cuda")  # small
                     for _ in range(200)]
            found.step()
    row, = found.sites
    assert ":%d " % marked("small") in row.name
    # One in 16 blocks of 4 KiB, about: 1 - exp(-4096 / 65536) of 200 a step.
    assert 16 < row.count < 1000
    del kept


def test_a_diff_names_lines():
    before = stratalloc.mark("before")
    mine = empty(3 * BIG)
    grown = stratalloc.diff(before, by="site")
    row, = grown.rows
    assert row.name.endswith(":%d empty" % line_of(empty))
    assert row.bytes == grown.total == stratalloc.diff(before).total == 3 * BIG
    after = stratalloc.mark()
    del mine
    assert stratalloc.diff(after, by="site").total == -3 * BIG
    with pytest.raises(ValueError, match="'line' does not exist"):
        stratalloc.diff(before, by="line")


def line_of(function):
    """Of its only statement."""
    return function.__code__.co_firstlineno + 1


def test_backward_is_the_layers():
    model = type("Backwards", (nn.Sequential,), {})(Layer()).cuda()
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    model(x).sum().backward()
    found = {row.name: row.bytes for row in stratalloc.holders(by="site").rows
             if row.name.startswith("(backward of ")}
    # The weight's gradient and the input's.
    assert found == {"(backward of Backwards.0.linear)": 2 * BIG}


def test_backward_of_nobodys_scope():
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    torch.relu(x).sum().backward()
    found = {row.name: row.bytes for row in stratalloc.holders(by="site").rows}
    assert found["(no Python frame)"] == BIG


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
                Doubles.kept.append(torch.ones(65536, device="cuda"))
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
        Calls()(x).sum().backward()
        Doubles.apply(x).sum().backward()  # of no layer
        found = {row.name: row.bytes
                 for row in stratalloc.holders(by="site").rows}
        assert found["(backward of Calls)"] == BIG
        assert BIG in [size for name, size in found.items()
                       if "torch/autograd/function.py" in name]
        assert not [name for name in found
                    if os.path.dirname(stratalloc.__file__) in name]
    finally:
        monkeypatch.undo()
        _frames.begin(_sites.libraries(torch))


def test_recomputation_is_the_layers_line():
    seen, threads = [], []

    class Looks(nn.Module):
        def forward(self, x):
            y = x.relu()  # again
            seen.append(sites(marked("again")))
            threads.append(threading.get_ident())
            return y.exp()

    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    checkpoint(Looks(), x, use_reentrant=False).sum().backward()
    (first, size), = seen[0].items()
    assert first.endswith("Looks.forward") and size == BIG
    # On a thread of autograd's, which has a frame while it recomputes.
    assert seen[1] == seen[0] and threads[1] != threads[0]


def test_an_eviction_moves_the_row():
    with stratalloc.scope("Evicted", category="parameter"):
        model = nn.Linear(1024, 1024, bias=False)
        model.cuda()  # evicted
    before = sites(marked("evicted"))
    stratalloc.evict(model)
    tiers = {row.tier for row in stratalloc.holders(by="site").rows
             if ":%d " % marked("evicted") in row.name}
    assert tiers == {"host"}
    assert sites(marked("evicted")) == before
    stratalloc.annotate(model.weight, "Evicted.named", category="buffer")
    assert sites(marked("evicted")) == before
    stratalloc.restore(model)
    assert sites(marked("evicted")) == before


def test_the_peak_is_refused():
    with pytest.raises(ValueError, match="only while it lives"):
        stratalloc.holders(by="site", at="peak")


def test_rows_add_up_while_threads_allocate_and_memory_leaves():
    done = threading.Event()
    failures = []

    def run():
        kept = []
        try:
            while not done.is_set():
                kept.append(empty(1000 + 300 * len(kept)))
                if len(kept) > 30:
                    del kept[::2]
        except Exception as error:  # told below
            failures.append(error)

    weights = [nn.Linear(256, 256).cuda() for _ in range(4)]
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(60):
        stratalloc.evict(weights[i % 4])
        found = stratalloc.holders(by="site")
        assert all(row.bytes > 0 for row in found.rows)
        assert found.total == sum(row.bytes for row in found.rows)
        stratalloc.restore(weights[i % 4])
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_graphs_pool_and_its_end():
    graph = torch.cuda.CUDAGraph()
    x = empty()
    with torch.cuda.graph(graph):
        y = x.clone()  # captured
    assert sites(marked("captured")) == {"test_a_graphs_pool_and_its_end": BIG}
    del y
    graph.reset()
    del graph
    gc.collect()
    assert not sites(marked("captured"))


def test_a_library_that_calls_back_is_looked_through(tmp_path, monkeypatch):
    """Installed packages are none of the user's; an editable one is."""
    from stratalloc._ownership import sites as _sites
    from stratalloc._native import _frames

    target, project = tmp_path / "target", tmp_path / "project"
    for where in (target, project):
        where.mkdir()
    make = textwrap.dedent("""
        import torch
        def make(size):
            return torch.empty(size, dtype=torch.uint8, device="cuda")
    """)
    (target / "installed_thing.py").write_text(make)
    (target / "installed_thing-1.dist-info").mkdir()
    (project / "edited_thing.py").write_text(make)
    monkeypatch.syspath_prepend(str(target))
    monkeypatch.syspath_prepend(str(project))
    import edited_thing
    import installed_thing

    try:
        _frames.begin(_sites.libraries(torch))
        kept = [installed_thing.make(BIG)]  # through
        assert list(sites(marked("through")).values()) == [BIG]
        kept.append(edited_thing.make(BIG))
        assert [row.bytes for row in stratalloc.holders(by="site").rows
                if row.name == f"{project}/edited_thing.py:4 make"] == [BIG]
    finally:
        monkeypatch.undo()
        _frames.begin(_sites.libraries(torch))
    del kept


def test_the_outermost_frame_where_all_are_libraries():
    from stratalloc._ownership import sites as _sites
    from stratalloc._native import _frames

    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    try:
        _frames.begin([""])  # and whatever is below
        assert _frames.line() == (f"{frame.f_code.co_filename}:{frame.f_lineno}"
                                  f" {frame.f_code.co_qualname}")
    finally:
        _frames.begin(_sites.libraries(torch))
    assert _frames.line().endswith(
        " test_the_outermost_frame_where_all_are_libraries")


def test_what_is_no_list_of_directories():
    from stratalloc._native import _frames

    with pytest.raises(TypeError):
        _frames.begin(3)
    with pytest.raises(TypeError):
        _frames.begin(["/lib", 3])
    assert _frames.line() is not None


def test_nobody_takes_the_gil_after_the_end():
    """What runs while Python ends: the gate is shut, and whoever was inside it
    has left when end() returns."""
    from stratalloc._ownership import sites as _sites
    from stratalloc._native import _frames

    done, kept = threading.Event(), []

    def run():
        while not done.is_set():
            empty()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            _frames.end()
            kept = [empty()]
            found = {row.name for row in stratalloc.holders(by="site").rows}
            assert "(no Python frame)" in found
            _frames.begin(_sites.libraries(torch))
    finally:
        done.set()
        _frames.begin(_sites.libraries(torch))
        for thread in threads:
            thread.join()
    del kept
