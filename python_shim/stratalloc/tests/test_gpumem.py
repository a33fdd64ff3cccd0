# SPDX-License-Identifier: Apache-2.0
"""%gpumem and %%gpumem in a shell of IPython: a cell runs as it would without,
and what is told of it are torch's numbers."""

import contextlib
import importlib
import io
import os
import random
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree

import pytest
import traitlets.config

from stratalloc import simulate

simulate.load("48MiB", devices=2)

import torch  # noqa: E402
from IPython.core.interactiveshell import InteractiveShell  # noqa: E402

import stratalloc  # noqa: E402
from python_shim.testing.let_go import let_go  # noqa: E402
from stratalloc import _core, _plot_svg, _resets  # noqa: E402
from stratalloc.telemetry.analysis.curves import Curves  # noqa: E402

MIB = 1 << 20
HEAD = """
import os, signal, threading, torch, stratalloc
def tensor(mib, device=0):
    return torch.empty(mib << 20, dtype=torch.uint8, device=f"cuda:{device}")
"""
_RESET = torch._C._cuda_resetPeakMemoryStats
_RESET_ACCUMULATED = torch._C._cuda_resetAccumulatedMemoryStats


class Ran:
    """A cell that ran: IPython's result, and what was printed."""

    def __init__(self, shell, text):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(out):
            self.result = shell.run_cell(textwrap.dedent(text),
                                         store_history=True)
        self.text = re.sub("\x1b\\[[0-9;]*m", "", out.getvalue())

    @property
    def error(self):
        return self.result.error_in_exec or self.result.error_before_exec


@pytest.fixture(scope="module", name="shell")
def _shell(tmp_path_factory):
    os.environ["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))
    config = traitlets.config.Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)
    assert stratalloc.enable(host_budget="64MiB", disk_budget=0)
    assert not Ran(shell, HEAD).error
    loaded = Ran(shell, "%load_ext stratalloc")
    assert loaded.text == ""  # there is nothing to be said
    return shell


@pytest.fixture(name="run")
def _run(shell):
    """Runs a cell. Afterwards nothing of the magic is left behind."""
    yield lambda text: Ran(shell, text)
    assert torch._C._cuda_resetPeakMemoryStats is _RESET
    assert _core.flight_recording() == 0
    for name in ("kept", "found", "outer", "inner", "layer"):
        shell.user_ns.pop(name, None)
    shell.displayhook.flush()
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    let_go(devices=2)


def torchs(device):
    stats = torch.cuda.memory_stats(device)
    return {name: stats.get(name, 0) for name in (
        "allocated_bytes.all.current", "allocated_bytes.all.peak",
        "reserved_bytes.all.current", "reserved_bytes.all.peak",
        "allocated_bytes.all.allocated", "allocation.all.allocated",
        "num_ooms")}


def sums(found):
    """What must add up, whatever a cell did."""
    for one in found.devices:
        assert sum(row.bytes for row in one.kept.rows) == one.kept.total == (
            one.live["after"] - one.live["before"])
        assert one.at_peak.total == one.allocated["peak"] == sum(
            row.bytes for row in one.at_peak.rows)
        for (label, parts), when in zip(one._bars.rows,
                                        ("before", "peak", "after")):
            assert label == when
            assert sum(parts.values()) == one.allocated[when]
    plain = found.to_dict()
    assert dict(found) == plain
    for one in plain["devices"]:
        assert sum(row["bytes"] for row in one["rows"]) == one["kept"]


@pytest.mark.parametrize("seed", range(6))
def test_numbers_are_torchs_on_two_devices(run, shell, seed):
    rng = random.Random(seed)
    assert not run("kept = {0: [], 1: []}").error
    for _ in range(4):
        lines = ["%%gpumem -o found" + rng.choice(["", " --trace"])]
        for _ in range(rng.randint(1, 8)):
            device = rng.randrange(2)
            lines.append(rng.choice([
                f"kept[{device}].append(tensor({rng.randint(1, 4)}, {device}))",
                f"del kept[{device}][:1]",
                f"tensor({rng.randint(1, 6)}, {device});",
                "torch.cuda.reset_peak_memory_stats()",
                f"with stratalloc.scope('Part.{rng.randrange(3)}'): "
                f"kept[{device}].append(tensor(1, {device}))"]))
        before = [torchs(device) for device in range(2)]
        ran = run("\n".join(lines))
        assert not ran.error, ran.text
        found = shell.user_ns["found"]
        sums(found)
        has_reset = any("reset_peak" in line for line in lines)
        for one in found.devices:
            was, now = before[one.device], torchs(one.device)
            for name in ("allocated", "reserved"):
                numbers = getattr(one, name)
                key = f"{name}_bytes.all."
                assert numbers["before"] == was[key + "current"]
                assert numbers["after"] == now[key + "current"]
                # The cell's own reset makes torch forget, not us.
                assert numbers["peak"] == now[key + "peak"] or (
                    has_reset and numbers["peak"] > now[key + "peak"])
            for ours, name in (
                    (one.allocated_in_all, "allocated_bytes.all.allocated"),
                    (one.blocks_in_all, "allocation.all.allocated"),
                    (one.refused, "num_ooms")):
                assert ours == now[name] - was[name], name
        assert {one.device for one in found.devices} >= {
            device for device in range(2) if torchs(device)[
                "allocated_bytes.all.peak"]}
        assert str(found) in ran.text


def test_a_peak_is_the_cells_own(run, shell):
    """Not one before it, and one that the cell makes torch forget is."""
    run("tensor(20);")
    run("%%gpumem -o found\ntensor(2);")
    assert shell.user_ns["found"].devices[0].allocated["peak"] == 2 * MIB
    assert torch.cuda.max_memory_allocated() == 2 * MIB
    run("""\
        %%gpumem -o found
        tensor(8)
        torch.cuda.reset_peak_memory_stats()
        kept = tensor(1)
        """)
    found = shell.user_ns["found"].devices[0]
    assert found.allocated == {"before": 0, "peak": 8 * MIB, "after": MIB}
    assert found.at_peak.total == 8 * MIB
    assert torch.cuda.max_memory_allocated() == MIB  # as the cell wanted
    run("""\
        %%gpumem -o found
        tensor(30)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        """)
    reserved = shell.user_ns["found"].devices[0].reserved
    assert reserved["peak"] >= 30 * MIB > torch.cuda.max_memory_reserved()


def test_cells_within_cells(run, shell):
    """The one around has the peak of all, the ones inside their own."""
    ran = run("""\
        %%gpumem -o outer
        kept = [tensor(1)]
        tensor(9)
        get_ipython().run_cell_magic(
            "gpumem", "-o inner", "kept.append(tensor(2)); tensor(3);")
        tensor(1);
        """)
    assert not ran.error, ran.text
    outer, inner = (shell.user_ns[name].devices[0].allocated
                    for name in ("outer", "inner"))
    assert outer == {"before": 0, "peak": 10 * MIB, "after": 3 * MIB}
    assert inner == {"before": MIB, "peak": 6 * MIB, "after": 3 * MIB}
    assert ran.text.count("the cell took") == 2


def test_a_cell_is_as_without(run, shell):
    assert run("%%gpumem\nx = 20\nx + 1").result.result == 21
    assert shell.user_ns["x"] == 20 and shell.user_ns["_"] == 21
    assert run("%%gpumem\nx + 1;").result.result is None
    assert run("%%gpumem\nx = 3").result.result is None
    assert run("%%gpumem\n# nothing").error is None
    assert "hello" in run("%%gpumem\n!echo hello").text
    assert run("%%gpumem\n%time 7 * 6").result.result == 42
    assert run("%%gpumem\ndef f():\n    return 5\nf()").result.result == 5
    assert run("y = %gpumem --top 2 x * 4\ny").result.result == 12
    assert run("%gpumem f(); x + 2").result.result == 5
    assert run("def g(local):\n    %gpumem local.append(1)\n"
               "items = []\ng(items); items").result.result == [1]


def test_what_a_cell_kept_is_told(run, shell):
    ran = run("""\
        %%gpumem --peak --top 2 -o found
        with stratalloc.scope("Net.layers.0", category="buffer"):
            kept = [tensor(4)]
        with stratalloc.scope("Net.layers.1", category="activation"):
            kept.append(tensor(2))
        tensor(3);
        """)
    lines = ran.text.splitlines()
    assert re.fullmatch("the cell took [0-9.]+ (ms|µs|s)", lines[0])
    assert [line.split() for line in lines[1:3]] == [
        ["device", "0", "before", "peak", "after", "kept"],
        ["allocated", "0", "B", "9", "MiB", "6", "MiB", "+6", "MiB"]]
    assert "allocated in all: 9 MiB in 3 blocks" in lines
    assert "+6 MiB from before to after on device 0" in lines
    assert re.search(r"total +\+6 MiB +\+2 ", ran.text)
    assert re.search(r"device 0 at its peak +bytes", ran.text)
    assert ran.text.count("--top N shows more") == 2
    frame = [(row["name"], row["category"], row["bytes"])
             for row in shell.user_ns["found"]["devices"][0]["rows"]]
    assert frame == [("Net.layers.0", "buffer", 4 * MIB),
                     ("Net.layers.1", "activation", 2 * MIB)]
    less = run("%%gpumem\ndel kept[0]").text
    assert "-4 MiB from before to after" in less and "peak" in less
    assert "at its peak" not in less


def test_threads_of_a_cell_are_in_it(run, shell):
    run("""\
        %%gpumem -o found
        kept = []
        def work(device):
            for _ in range(5):
                kept.append(tensor(1, device))
                torch.cuda.reset_peak_memory_stats(device)
        threads = [threading.Thread(target=work, args=(i % 2,))
                   for i in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """)
    found = shell.user_ns["found"]
    sums(found)
    assert [one.kept.total for one in found.devices] == [10 * MIB] * 2
    assert [one.allocated["peak"] for one in found.devices] == [10 * MIB] * 2


def test_what_moved_and_waited_is_told(run, shell):
    before = dict(stratalloc.stats(0)["tiers"])
    ran = run("""\
        %%gpumem -o found
        kept = [torch.nn.Linear(1024, 2048, bias=False).cuda()
                for _ in range(8)]
        with torch.no_grad():
            for layer in kept:
                layer(torch.ones(1, 1024, device="cuda"))
        """)
    assert not ran.error, ran.text
    one = shell.user_ns["found"].devices[0]
    sums(shell.user_ns["found"])
    after = stratalloc.stats(0)["tiers"]
    assert one.moved == {name: after["bytes_" + name] - before["bytes_" + name]
                         for name in one.moved}
    assert one.moved["evicted"] >= 16 * MIB and one.moved["restored"]
    assert (one.stalls, one.stall_ns) == (
        after["stalls"] - before["stalls"],
        after["stall_ns"] - before["stall_ns"])
    assert re.search(r"moved: [0-9.]+ MiB out, [0-9.]+ MiB in, 0 B to disk, "
                     "0 B from disk", ran.text)
    assert f"operators waited {one.stalls} time" in ran.text or not one.stalls
    run("%%gpumem -o found\n1")
    assert set(shell.user_ns["found"].devices[0].moved.values()) == {0}
    # What is away is not on the device, and has not gone.
    assert one.live["after"] == 64 * MIB > one.allocated["after"]
    assert "live, all tiers" in ran.text


def test_an_error_is_shown_after_the_table(run, shell):
    ran = run("""\
        %%gpumem -o found
        kept = tensor(2)

        raise KeyError("mine")
        """)
    assert type(ran.error) is KeyError
    table, trace = ran.text.split("KeyError", 1)
    assert "ended with" in ran.text.splitlines()[0]
    at = ran.text.index("from before to after")
    assert at < ran.text.index("Traceback (most recent call last)")
    assert re.search(r"line 4\n.*\n-+> 4 raise KeyError", ran.text)
    assert "_notebook.py" not in trace and "_cell.py" not in trace
    found = shell.user_ns["found"]
    assert found.error == "KeyError" and found["error"] == "KeyError"
    assert found.devices[0].kept.total == 2 * MIB


def test_out_of_memory_is_told_and_raised(run, shell):
    ran = run("""\
        %%gpumem --trace -o found
        kept = tensor(3)
        tensor(1 << 20)
        """)
    assert type(ran.error) is torch.OutOfMemoryError
    assert ran.text.startswith("the cell took ")
    assert "1 request was refused: out of memory" in ran.text
    assert (ran.text.index("device 0") < ran.text.index("Traceback")
            < ran.text.rindex("CUDA out of memory"))
    one = shell.user_ns["found"].devices[0]
    assert one.refused == 1 and one.kept.total == 3 * MIB


@pytest.mark.parametrize("reset", [
    "torch.cuda.reset_accumulated_memory_stats()",
    "torch.accelerator.reset_accumulated_memory_stats()"])
def test_what_was_refused_is_told_whatever_torch_forgets(run, shell, reset):
    """And what the program had torch forget, torch has forgotten."""
    refuse = "\ntry: tensor(1 << 20)\nexcept torch.OutOfMemoryError: pass\n"
    run(refuse * 3)
    inner = refuse + reset + refuse
    ran = run(f"%%gpumem -o outer{refuse}{reset}\n{reset}\nkept = tensor(1)\n"
              f"get_ipython().run_cell_magic('gpumem', '-o inner', {inner!r})")
    assert not ran.error, ran.text
    outer, inner = (shell.user_ns[name].devices[0]
                    for name in ("outer", "inner"))
    assert (outer.refused, inner.refused) == (3, 2)
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert "3 requests were refused: out of memory" in ran.text
    assert "in 1 block\n" in ran.text
    assert outer.blocks_in_all == 1
    assert torch._C._cuda_resetAccumulatedMemoryStats is _RESET_ACCUMULATED


def test_an_interrupt_ends_the_cell_alone(run, shell):
    ran = run("""\
        %%gpumem --trace -o found
        kept = tensor(1)
        os.kill(os.getpid(), signal.SIGINT)
        while True: pass
        """)
    assert type(ran.error) is KeyboardInterrupt
    assert shell.user_ns["found"].error == "KeyboardInterrupt"
    assert shell.user_ns["found"].devices[0].kept.total == MIB
    run("%%gpumem -o found\nkept = None")
    assert shell.user_ns["found"].devices[0].kept.total == -MIB


def test_what_is_no_cell_does_not_run(run, shell):
    shell.user_ns["ran"] = []
    bad = run("%%gpumem\nran.append(1)\nx = = 3")
    assert type(bad.error) is SyntaxError and "line 3" in bad.text
    waits = run("%%gpumem\nimport asyncio\nran.append(1)\n"
                "await asyncio.sleep(0)")
    assert "a magic is no coroutine" in waits.text and waits.error
    for line, said in (
            ("%%gpumem --top x\nran.append(1)", "--top x is no number"),
            ("%%gpumem -o a+b\nran.append(1)", "-o a+b is no name"),
            ("%%gpumem -o if\nran.append(1)", "-o if is no name"),
            ("%%gpumem --tracy\nran.append(1)", "--tracy"),
            ("%%gpumem x\nran.append(1)", "'x' is no option"),
            ("%gpumem -o x", "give a statement")):
        ran = run(line)
        assert ran.error and said in ran.text, (line, ran.text)
    assert shell.user_ns["ran"] == []


def test_the_way_around_await_is_one(run):
    ran = run("""\
        import asyncio
        with stratalloc.trace() as trace:
            await asyncio.sleep(0)
            tensor(2)
        trace
        """)
    assert not ran.error and re.search("device 0", ran.text), ran.text


def _pictures(found):
    return [xml.etree.ElementTree.fromstring(one) for one in
            re.findall("<svg.*?</svg>", found._repr_html_())]


def test_pictures_are_of_events_where_there_are_some(run, shell):
    cell = "%%gpumem{} -o found\nkept = tensor(4)\ntensor(5);"

    def shown(option=""):
        assert not run(cell.format(option)).error
        found = shell.user_ns["found"]
        (picture,) = _pictures(found)
        return found, picture.find("{*}title").text, picture.find(
            "{*}desc").text

    found, title, desc = shown()
    assert found.run is None and title == "allocated on device 0 by category"
    assert desc == ("before 0 B: nothing; peak 9 MiB: unknown 9 MiB; "
                    "after 4 MiB: unknown 4 MiB")
    found, title, desc = shown(" --trace")
    assert title == "allocated on device 0 by category, over time"
    assert re.search("most at .*, 13 MiB|most at .*, 9 MiB", desc)
    areas = Curves(found.run, 0).areas()
    drawn = [sum(each) for each in zip(*areas.parts.values())]
    one = found.devices[0].allocated
    assert (drawn[0], max(drawn), drawn[-1]) == tuple(one.values())
    before = stratalloc.telemetry_level("events")
    try:
        assert shown()[0].run is not None
    finally:
        stratalloc.telemetry_level(before)
    assert shown()[0].run is None


def test_names_are_text(run, shell):
    run("""\
        %%gpumem --trace --peak -o found
        with stratalloc.scope("(<script>alert(1)</script>&'\\""):
            kept = tensor(1)
        stratalloc.mark("</svg><script>alert(2)</script>")
        """)
    html = shell.user_ns["found"]._repr_html_()
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html
    assert "&lt;script&gt;alert(2)" in html
    assert len(_pictures(shell.user_ns["found"])) == 1


def test_now(run):
    run("kept = [tensor(2), tensor(1, 1)]")
    text = run("%gpumem").text
    assert re.search(r"stratalloc, device 0.*allocated +2 MiB.*"
                     r"device 0 now +bytes.*\(no scope\) +2 MiB.*"
                     r"stratalloc, device 1.*\(no scope\) +1 MiB", text,
                     re.DOTALL)
    assert "device 1 at its peak" in run("%gpumem --peak").text


def test_extensions_come_and_go(run, shell):
    assert not run("%load_ext autoreload\n%autoreload 2").error
    assert "already loaded" in run("%load_ext stratalloc").text
    for again in range(2):
        assert not run("%reload_ext stratalloc").error
        ran = run("%%gpumem -o found\nkept = tensor(1)")
        assert not ran.error and "the cell took" in ran.text
    importlib.reload(sys.modules["stratalloc._notebook"])
    assert not run("%%gpumem\n1").error
    assert not run("%unload_ext stratalloc").error
    assert "not found" in run("%%gpumem\n1").text
    assert "not found" in run("%gpumem").text
    assert not run("%autoreload 0\n%load_ext stratalloc").error
    assert "the cell took" in run("%%gpumem\n1").text


_ALONE = """
import os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def run(text):
    print(">>>", text.splitlines()[0], flush=True)
    assert shell.run_cell(text).success
"""


def _alone(program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _ALONE + textwrap.dedent(program)],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_process_without_the_allocator_is_told_what_to_do(tmp_path):
    text = _alone("""
        run("%load_ext stratalloc")
        assert "torch" not in sys.modules
        run("%%gpumem\\nprint(6 * 7)")
        run("%gpumem")
        from stratalloc import simulate
        simulate.load("48MiB")
        import torch
        run("%%gpumem\\nimport stratalloc, torch\\nstratalloc.enable(disk_budget=0)\\n"
            "x = torch.ones(1 << 18, device='cuda')")
        run("%%gpumem\\nx = None")
        """, tmp_path)
    what = ("nothing is measured yet: run `import stratalloc; "
            "stratalloc.enable()` before the first use of CUDA\n")
    cells = text.split(">>> ")[1:]
    assert cells[0] == "%load_ext stratalloc\nstratalloc: " + what
    assert cells[1].startswith("%%gpumem\n42\nthe cell took ")
    assert cells[1].endswith(what) and cells[2].endswith(what)
    assert re.search(r"\+1 MiB from before to after", cells[3])
    assert re.search(r"-1 MiB from before to after", cells[4])


def test_a_process_of_another_allocator_is_told_who_began(tmp_path):
    text = _alone("""
        from stratalloc import simulate
        simulate.load("48MiB")
        import torch
        run("import torch\\ndef first():\\n    torch.ones(1, device='cuda')\\nfirst()")
        run("%load_ext stratalloc")
        run("%%gpumem\\nprint(torch.ones(2, device='cuda').sum().item())")
        run("%gpumem")
        """, tmp_path)
    what = re.compile(r"nothing is measured: another allocator is in place "
                      r"since CUDA was initialised, by .*\(in first\); restart "
                      r"the kernel, and run `import stratalloc; "
                      r"stratalloc.enable\(\)` before the first use of CUDA\n")
    _, loaded, ran, now = text.split(">>> ")[1:]
    assert what.search(loaded) and what.search(ran) and what.search(now), text
    assert ran.startswith("%%gpumem\n2.0\nthe cell took")


def test_a_device_that_is_lost_ends_no_cell(run, shell, monkeypatch):
    """What cannot be asked is told; the cell's own way stays as it is."""
    from stratalloc import _reports

    def lost(device):
        raise RuntimeError("device 0 is lost")

    for name in ("before", "meanwhile"):
        with monkeypatch.context() as patched:
            if name == "before":
                patched.setattr(_reports, "report", lost)
            else:
                shell.user_ns["lose"] = lambda: patched.setattr(
                    _reports, "report", lost)
            ran = run("%%gpumem\n" + "lose()\n" * (name != "before") + "6 * 7")
        assert ran.result.result == 42 and not ran.error
        assert "not all was measured: device 0 is lost" in ran.text


def test_pictures_pass_terminals_over(run):
    assert "svg" not in run("%%gpumem --trace\ntensor(1);").text


def test_resets_are_heard_once_per_program():
    """Whoever listens last is put back first, and a name that torch lacks is
    no error."""
    heard = []
    one = _resets.heard(torch, lambda: heard.append("one"))
    two = _resets.heard(torch, lambda: heard.append("two"))
    torch.cuda.reset_peak_memory_stats()
    two.put_back()
    torch.cuda.reset_peak_memory_stats()
    one.put_back()
    torch.cuda.reset_peak_memory_stats()
    assert heard == ["two", "one", "one"]
    assert torch._C._cuda_resetPeakMemoryStats is _RESET


def test_times_are_for_people():
    assert list(map(_plot_svg.shown_time, (
        0, 999, 1500, 12345678, 999 * 10 ** 6, 61 * 10 ** 9,
        7200 * 10 ** 9))) == ["0 ns", "999 ns", "1.5 µs", "12.3 ms", "999 ms",
                              "61 s", "7200 s"]
