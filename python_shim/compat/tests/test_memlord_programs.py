# SPDX-License-Identifier: Apache-2.0
"""MemLord in whole programs: asynchronous copies, children, compiled code, the
log, and a process's end."""

import gc
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from stratalloc import simulate

simulate.load("64MiB", devices=2, mode="async")

# pylint: disable=wrong-import-position
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from bazel import programs  # noqa: E402
from stratalloc.compat.memlord import MemLord  # noqa: E402

gc.freeze()  # what was imported is no garbage
_MIB = 1 << 20
_CUDA0, _CUDA1 = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture(name="mem")
def _mem():
    mem = MemLord(auto_gc_strategy={})
    mem.hook_into_torch()
    mem.hook_into_python()
    return mem


def _ones(device):
    return torch.ones(_MIB // 4, device=device)


def _is(mem, allocated, freed, device):
    return (mem.allocated(device)[0], mem.freed(device)[0]) == (
        allocated * _MIB, freed * _MIB)


# Frees that wait for a copy


def test_what_a_copy_reads_is_credited_at_the_synchronisation(mem):
    x = _ones(_CUDA0)
    y = x.to(_CUDA1, non_blocking=True)
    del x
    assert _is(mem, 1, 0, _CUDA0) and _is(mem, 1, 0, _CUDA1)
    torch.cuda.synchronize(_CUDA0)
    assert _is(mem, 0, 1, _CUDA0)
    z = y.to("cpu", torch.float32, True)  # by position
    mem.free(y)
    mem.free(y)
    del y
    assert _is(mem, 1, 0, _CUDA1)
    torch.cuda.current_stream(_CUDA1).synchronize()
    assert _is(mem, 0, 1, _CUDA1)
    assert z.is_pinned()  # such a copy back is
    w = z.to(_CUDA1, non_blocking=True)
    del z
    assert _is(mem, 1, 0, "cpu")
    event = torch.cuda.current_stream(_CUDA1).record_event()
    event.synchronize()
    assert _is(mem, 0, 1, "cpu")
    del w


def test_a_free_in_flight_is_taken_back_by_naming_it_again(mem):
    x = _ones(_CUDA0)
    y = x.to(_CUDA1, non_blocking=True)
    mem.free(x)
    mem.allocate(x)
    torch.cuda.synchronize(_CUDA0)
    assert _is(mem, 1, 0, _CUDA0)
    blocking = x.to(_CUDA1)
    del x
    assert _is(mem, 0, 1, _CUDA0)  # nothing is in flight
    del y, blocking


def test_a_synchronisation_of_another_stream_credits_nothing(mem):
    over = []

    class Event:  # of a copy on a stream that nobody waits for
        query = staticmethod(lambda: bool(over))

    x = _ones(_CUDA0)
    mem._accounts.took_off([x.untyped_storage()], Event)
    del x
    torch.cuda.synchronize(_CUDA1)
    assert _is(mem, 1, 0, _CUDA0)
    over.append(True)
    torch.cuda.Stream(_CUDA1).synchronize()
    assert _is(mem, 0, 1, _CUDA0)


def test_without_the_hooks_nothing_waits():
    mem = MemLord({})
    hooks = mem.hook_into_torch()
    x = _ones(_CUDA0)
    mem.allocate(x)
    y = x.to(_CUDA1, non_blocking=True)
    del x
    assert _is(mem, 1, 0, _CUDA0)
    hooks.disable()
    assert _is(mem, 0, 1, _CUDA0)
    torch.cuda.synchronize()
    del y


# Children of a fork


class _Numbers(torch.utils.data.Dataset):

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((256,), float(index)).clone()


def test_workers_of_a_loader_count_their_own(mem):
    mem.set_auto_gc_strategy(None)
    x = torch.ones(9)  # asks how full the machine is: there is a thread
    mem.free(x)
    loader = torch.utils.data.DataLoader(_Numbers(), batch_size=4,
                                         num_workers=2)
    assert sum(float(batch.sum()) for batch in loader) == 256 * 28


def test_a_child_asks_no_gpu_and_hangs_nowhere(mem):
    mem.set_auto_gc_strategy(
        {(0, 101): {"metric": "freed", "threshold": {"bytes": 1}}})
    x = _ones(_CUDA0)
    mem.allocate(x)
    assert mem._device_memory_stats(_CUDA0)[0] == 64 * _MIB
    with mem._accounts._lock, mem._collecting:  # as a thread that is not there
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.alarm(60)
                y = torch.empty(_MIB, dtype=torch.uint8)  # no OpenMP's threads
                del y
                del x
                ours = mem.freed("cpu")[0] >= _MIB and mem.allocated(
                    _CUDA0)[0] == 0
                nobody = mem._device_memory_stats(_CUDA0) == (None, None, 0.0)
                machine = mem._device_memory_stats(torch.device("cpu"))[0]
                mem.hook_into_python().disable()
                code = 0 if ours and nobody and machine else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Compiled code


def test_what_is_compiled_meets_the_originals():
    mem = MemLord({})
    mem.hook_into_python()
    def work(x):
        y = torch.relu(x + torch.ones(3)).to(torch.float64)
        return y * torch.nn.functional.gelu(x).sum()

    script = torch.jit.script(_scripted)
    assert script(torch.zeros(3)).tolist() == [1, 1, 1]
    x = torch.arange(3.)
    assert "torch._dynamo" not in sys.modules
    torch.add(x, x)
    compiled = torch.compile(work, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), work(x))
    assert torch.add is not torch.add.__wrapped__  # heard again
    del mem
    torch._dynamo.reset()
    again = torch.compile(work, backend="eager", fullgraph=True)
    assert torch.equal(again(x), work(x))
    assert torch.empty in torch._dynamo.trace_rules.get_torch_obj_rule_map()
    gc.freeze()  # the compiler is large


def _scripted(x: torch.Tensor):
    return torch.add(torch.zeros_like(x), torch.ones(3))


class _Layers(nn.Module):
    """Functions of PyTorch that are Python's, overloaded, chosen by an
    argument, and one that the module itself keeps."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2),
            nn.Upsample(scale_factor=2.0), nn.Dropout(), nn.LayerNorm(4),
            nn.Softmax(-1))
        self.attention = nn.MultiheadAttention(4, 2)
        self.embedding = nn.Embedding(3, 4)
        self.loss = nn.CrossEntropyLoss()
        self.kept = nn.functional.elu

    def forward(self, image, words):
        x = self.layers(image).mean(0)
        x = self.attention(x, x, x)[0].flatten(0, 1)
        return self.loss(self.kept(x) @ self.embedding(words).t(),
                         torch.zeros(len(x), dtype=torch.long))


class _OldStyle(torch.jit.ScriptModule):

    @torch.jit.script_method
    def forward(self, x):
        return nn.functional.layer_norm(x, [3])


class _Exports(nn.Module):

    @torch.jit.export
    def normal(self, x):
        return nn.functional.layer_norm(x, [3])

    def forward(self, x):
        return nn.functional.softmax(x, -1)


def test_models_are_scripted_and_traced_and_counted_again():
    places = [(torch.jit._script, "_script_impl"),
              (torch.jit._recursive, "create_script_module")]
    before = [getattr(*place) for place in places]
    gc.collect()  # trackers of others
    table = len(torch.jit._builtins._get_builtin_table())
    mem = MemLord({})
    hooks = [mem.hook_into_torch(), mem.hook_into_python()]
    from torch import add as kept_add
    from torch.nn.functional import max_pool1d as kept_pool
    from torch.nn.functional import selu as kept

    def work(x):
        pooled = kept_pool(x[None], 2)
        return kept_add(kept(x), torch.ones(3)) + pooled

    model = _Layers().eval()
    inputs = torch.ones(1, 1, 6, 6), torch.arange(3)
    script = torch.jit.script(model)
    assert torch.allclose(script(*inputs), model(*inputs))
    x = torch.arange(3.)
    assert torch.equal(torch.jit.script(work)(x), work(x))

    def scripted_class(width=3):
        @torch.jit.script
        class Widths:  # its names are those of this frame
            def __init__(self, more: int):
                self.sum = len(torch.zeros(more)) + len(kept_add(
                    torch.zeros(3), 1))

        return Widths(width)

    assert scripted_class().sum == 6
    assert torch.allclose(_OldStyle()(x), _Exports().normal(x))
    traced = torch.jit.trace(_Exports(), x)
    assert torch.equal(traced.normal(x), _OldStyle()(x))
    assert torch.equal(traced(x), _Exports()(x))
    was = mem.allocated()[0]
    y = torch.add(x, x)  # heard again
    assert mem.allocated()[0] == was + y.untyped_storage().nbytes()
    for each in hooks:
        each.disable()
    assert torch.jit.script(model)(*inputs) == model(*inputs)
    assert torch.equal(torch.jit.script(work)(x), work(x))
    assert [getattr(*place) for place in places] == before
    # One that somebody kept is known as long as it is kept.
    assert len(torch.jit._builtins._get_builtin_table()) == table + 1


# The log


class _Terminal(io.StringIO):

    def isatty(self):
        return True


def _log(monkeypatch, stream, **environment):
    for name in ("DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    mem = MemLord({(0, 101): {"metric": "freed",
                              "threshold": {"bytes": 2 * _MIB}}})
    mem._device_memory_stats = lambda device: (100 * _MIB, 0, 12.5)
    x = torch.empty(2 * _MIB, dtype=torch.uint8)
    mem.allocate(x)
    mem.set_callsite_tracking(True)
    mem.free(x)
    mem.reset()
    return stream.getvalue()


def test_debug_is_told_in_colours_on_a_terminal(monkeypatch):
    told = _log(monkeypatch, _Terminal(), DEBUG="1").splitlines()
    assert told[:3] == [
        "\x1b[31m[allocate]\x1b[0m +2 MiB on cpu",
        "\x1b[36m[summary]\x1b[0m cpu: 2 MiB allocated, 0 B freed",
        told[2]]
    assert told[2].startswith("\x1b[32m[free]\x1b[0m -2 MiB on cpu at ")
    assert "test_memlord_programs.py:" in told[2]
    assert told[3:] == [
        "\x1b[36m[summary]\x1b[0m cpu: 0 B allocated, 2 MiB freed",
        "\x1b[33m[auto_gc]\x1b[0m cpu is 12.5 % full: freed 2 MiB has reached "
        "2 MiB; collected",
        "\x1b[35m[reset]\x1b[0m counters and hotspots"]


def test_debug_is_plain_elsewhere_and_silent_without(monkeypatch):
    plain = _log(monkeypatch, io.StringIO(), DEBUG="1")
    assert "\x1b" not in plain and plain.startswith("[allocate] +2 MiB")
    uncoloured = _log(monkeypatch, _Terminal(), DEBUG="1", NO_COLOR="1")
    assert uncoloured == plain
    for quiet in ({}, {"DEBUG": ""}, {"DEBUG": "0"}):
        assert _log(monkeypatch, _Terminal(), **quiet) == ""
    closed = io.StringIO()
    monkeypatch.setenv("DEBUG", "1")
    monkeypatch.setattr(sys, "stderr", closed)
    mem = MemLord({})
    closed.close()
    mem.free(torch.ones(3))  # a line that cannot be written is lost


# A process's end, and the library's frames

_PROGRAM = """
import atexit
import torch; torch.cuda.init()
from stratalloc.compat.memlord import MemLord

class Last:
    def __del__(self, mem=None):
        self.mem.allocate(self.x); self.mem.free("no tensor")

mem = MemLord({}, track_callsite=True)
mem.hook_into_torch()
assert torch.Tensor.to.__wrapped__ in torch.overrides.get_testing_overrides()
mem.hook_into_python()
layer = torch.nn.Linear(1024, 1024)

def load():
    return torch.nn.Linear(512, 2048).to("cuda")

layer = load()
site = mem.top_alloc_site(torch.device("cuda"))
assert site[1:] == ("program.py:17", 4 * (512 + 1) * 2048), site
assert mem._device_memory_stats(torch.device("cuda", 0))[:2] == (
    64 << 20, torch.cuda.memory_reserved())
last = Last()
last.mem, last.x, last.me = mem, torch.ones(3), last
keep = [torch.ones(9) for _ in range(9)]
mem.free(keep[0])
atexit.register(lambda: mem.allocate(keep))
"""


def test_a_process_over_pytorchs_allocator_ends_in_silence(tmp_path):
    (tmp_path / "program.py").write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--simulate", "64MiB",
         "--allocator", "native", "program.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={k: v for k, v in os.environ.items() if k != "DEBUG"})
    lines = [line for line in done.stderr.splitlines()
             if not line.startswith("stratalloc: ")]
    assert (done.returncode, done.stdout, lines) == (0, "", [])
    assert "memlord works over torch's own allocator, so" in done.stderr


_EXAMPLE = pathlib.Path("python_shim/examples/memlord")


def test_the_example_prints_what_its_page_shows(tmp_path):
    shutil.copy(_EXAMPLE / "two_devices.py", tmp_path)
    done = programs.run("-m", "stratalloc", "run", "--simulate", "64MiB",
                        "--devices", "2", "two_devices.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (_EXAMPLE / "README.md").read_text()
    shown = page.split("```text\n")[1].split("```")[0]
    assert done.stdout == shown
