# SPDX-License-Identifier: Apache-2.0
"""disable(): tiering ends in a running program, whatever it is doing.

One process per case, since tiering cannot begin again in it.
"""

import pytest

from tests.system.e2e import running

_BEGIN = """
import logging
import threading
import torch
import stratalloc
assert stratalloc.enable(host_budget="256MiB", disk_budget=0)
"""

# `parts` of 4 MiB each; step() adds one to each of them.
_MODEL = """
class Model:
    def __init__(self, parts):
        self.parts = [torch.full((1 << 20,), float(i), device="cuda")
                      .requires_grad_() for i in range(parts)]
        self.steps = 0

    def step(self):
        with torch.no_grad():
            for part in self.parts:
                part.add_(1)
        self.steps += 1

    def check(self):
        assert [p.sum().item() / (1 << 20) for p in self.parts] == [
            i + self.steps for i in range(len(self.parts))]

def warned(call):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("stratalloc").addHandler(handler)
    assert call()
    logging.getLogger("stratalloc").removeHandler(handler)
    return said

def refused(call, kind):
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        return str(error)
    raise AssertionError(f"no {kind.__name__}")
"""

_ENDS = """
model = Model(20)  # 80 MiB on 64
model.step()
assert stratalloc.config().tiering
del model.parts[10:]
stratalloc.evict()
assert stratalloc.disable() == 40 << 20
assert stratalloc.disable() == 0
model.step()
model.check()
said = refused(stratalloc.evict, RuntimeError)
assert "disable() has switched tiering off" in said, said
assert stratalloc.restore() == 0
said = refused(lambda: torch.empty(40 << 20, device="cuda"),
               torch.OutOfMemoryError)
assert "disable() has switched tiering off" in said, said
assert stratalloc.is_enabled() and not stratalloc.config().tiering
assert warned(stratalloc.enable) == ["stratalloc: enable() switches nothing "
    "on: disable() has ended tiering in this process"]
said = refused(lambda: stratalloc.enable(host_budget="256MiB"), RuntimeError)
assert "disable() has switched tiering off for the rest of" in said, said
assert "tiering off" in stratalloc.memory_summary().splitlines()[0]
assert stratalloc.report()["stays"] == {"where tiering is off": 40 << 20}
assert "would have to leave" not in str(stratalloc.explain("28 MiB"))
owners = stratalloc.holders()
model.check()
"""

_DOES_NOT_FIT = """
model = Model(20)
model.step()
said = refused(stratalloc.disable, torch.OutOfMemoryError)
assert "of evicted memory, in whole pages, have no room on GPU 0" in said, said
assert "until then tiering goes on" in said, said
assert stratalloc.config().tiering
for _ in range(3):
    model.step()
model.check()
del model.parts[12:]
stratalloc.disable()
model.step()
model.check()
"""

_CACHE_IS_IN_THE_WAY = """
model = Model(10)
assert stratalloc.evict() == 40 << 20
cached = [torch.empty(4 << 20, device="cuda") for _ in range(12)]
del cached
assert torch.cuda.memory_reserved() > 44 << 20
assert stratalloc.disable() == 40 << 20
model.step()
model.check()
"""

_FROM_A_THREAD = """
model = Model(12)
done = threading.Event()

def end():
    stratalloc.disable()
    done.set()

for _ in range(3):
    stratalloc.evict()
    model.step()
stratalloc.evict()
thread = threading.Thread(target=end)
thread.start()
while not done.is_set():
    model.step()
thread.join()
model.step()
model.check()
assert refused(stratalloc.evict, RuntimeError)
"""

_IN_A_CAPTURE = """
model = Model(4)
model.step()
stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    said = refused(stratalloc.disable, RuntimeError)
    assert "a stream of GPU 0 captures a graph" in said, said
    refusals = []
    other = threading.Thread(
        target=lambda: refusals.append(refused(stratalloc.disable, RuntimeError)))
    other.start()
    other.join()
    assert "a stream of GPU 0 captures a graph" in refusals[0], refusals
    with torch.no_grad():
        model.parts[0].add_(1)
assert stratalloc.config().tiering
graph.replay()
assert model.parts[0].sum().item() == 2 << 20
stratalloc.evict()
stratalloc.disable()
graph.replay()
assert model.parts[0].sum().item() == 3 << 20
assert [p.sum().item() / (1 << 20) for p in model.parts[1:]] == [2, 3, 4]
"""

_GRAPH_AFTERWARDS = """
model = Model(4)
stratalloc.evict()
stratalloc.disable()
stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    model.step()
for _ in range(2):
    graph.replay()
model.steps = 2
model.check()
"""

_BEFORE_CUDA = """
assert stratalloc.disable() == 0
assert not stratalloc.config().tiering
assert stratalloc.config().host_budget == 256 << 20
assert warned(stratalloc.enable) == ["stratalloc: enable() switches nothing "
    "on: disable() has ended tiering in this process"]
said = refused(lambda: stratalloc.enable(host_budget="128MiB"), RuntimeError)
assert "disable() has switched tiering off for the rest of" in said, said
model = Model(4)
model.step()
said = refused(stratalloc.evict, RuntimeError)
assert "tiering is off" in said, said
assert stratalloc.disable() == 0
model.check()
"""

_SWAP_STAYS_WITH_THE_CALLER = """
import torch
import stratalloc
ours = stratalloc.allocator()
assert not stratalloc.is_enabled()
assert stratalloc.disable() == 0
assert not stratalloc.is_enabled() and not stratalloc.config().tiering
try:
    stratalloc.allocator(host_budget="128MiB")
    raise AssertionError("tiering would begin again")
except RuntimeError as error:
    assert "disable() has switched tiering off" in str(error), error
torch.cuda.memory.change_current_allocator(ours)
assert torch.ones(3, device="cuda").sum().item() == 3
assert stratalloc.is_enabled() and not stratalloc.config().tiering
"""

_LATER_DEVICE = """
model = Model(4)
stratalloc.evict()
stratalloc.disable()
later = [torch.ones(4 << 20, device="cuda:1") for _ in range(3)]  # 48 of 64 MiB
assert stratalloc.report(1)["stays"] == {"where tiering is off": 48 << 20}
assert not stratalloc.explain("40 MiB", device=1).fits
said = refused(lambda: torch.ones(10 << 20, device="cuda:1"),
               torch.OutOfMemoryError)
assert "disable() has switched tiering off" in said, said
assert "host_budget" not in said, said
assert stratalloc.disable() == 0 and stratalloc.restore() == 0
assert refused(lambda: stratalloc.evict(later), RuntimeError)
model.check()
"""


@pytest.mark.parametrize("body", [
    pytest.param(_ENDS, id="and-nothing-leaves"),
    pytest.param(_DOES_NOT_FIT, id="not-while-it-does-not-fit"),
    pytest.param(_CACHE_IS_IN_THE_WAY, id="cache-makes-room"),
    pytest.param(_FROM_A_THREAD, id="from-a-thread"),
    pytest.param(_IN_A_CAPTURE, id="not-inside-a-capture"),
    pytest.param(_GRAPH_AFTERWARDS, id="graph-afterwards"),
    pytest.param(_BEFORE_CUDA, id="before-cuda"),
])  # fmt: skip
def test_disable_ends_tiering(tmp_path, body):
    path = tmp_path / "program.py"
    path.write_text(running.LOAD + _BEGIN + _MODEL + body)
    done = running.python(path)
    assert (running.must_work(done), done.stderr) == ("", "")


def _must_pass(tmp_path, text, **more):
    path = tmp_path / "program.py"
    path.write_text(text)
    done = running.python(path, **more)
    assert (running.must_work(done), done.stderr) == ("", "")


def test_disable_before_the_swap_leaves_it_to_the_caller(tmp_path):
    _must_pass(tmp_path, running.LOAD + _SWAP_STAYS_WITH_THE_CALLER)


@pytest.mark.skipif(not running.SIMULATED, reason="wants two GPUs")
def test_disable_holds_for_a_device_that_is_opened_later(tmp_path):
    _must_pass(tmp_path, running.LOAD.replace("mode=", "devices=2, mode=")
               + _BEGIN + _MODEL + _LATER_DEVICE)


def test_disable_where_stratalloc_0_forbids_it_has_nothing_to_do(tmp_path):
    _must_pass(tmp_path, running.LOAD + """
import stratalloc
assert stratalloc.disable() == 0
""", STRATALLOC="0")


def test_disable_before_enable_says_what_to_call(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(running.LOAD + """
import stratalloc
try:
    stratalloc.disable()
except stratalloc.NotEnabledError as error:
    print(error)
""")
    said = running.must_work(running.python(path))
    assert said.startswith("stratalloc: not enabled: call stratalloc.enable()")


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
