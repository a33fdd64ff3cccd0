# SPDX-License-Identifier: Apache-2.0
"""Cells of %%gpumem that fail, that do not run, and in processes without the
allocator: a cell runs and ends as it would without the magic."""

import importlib
import os
import re
import subprocess
import sys
import textwrap

import pytest

from stratalloc import simulate

simulate.load("48MiB", devices=2)

import torch  # noqa: E402

from gpumem_cells import (  # noqa: E402,F401
    MIB, RESET_ACCUMULATED, run_fixture, shell_fixture)


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
    assert "_notebook/" not in trace
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
    assert torch._C._cuda_resetAccumulatedMemoryStats is RESET_ACCUMULATED


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


def test_extensions_come_and_go(run, shell):
    assert not run("%load_ext autoreload\n%autoreload 2").error
    assert "already loaded" in run("%load_ext stratalloc").text
    for again in range(2):
        assert not run("%reload_ext stratalloc").error
        ran = run("%%gpumem -o found\nkept = tensor(1)")
        assert not ran.error and "the cell took" in ran.text
    importlib.reload(sys.modules["stratalloc._notebook.magics"])
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
    from stratalloc._reports import reports as _reports

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
