# SPDX-License-Identifier: Apache-2.0
"""Cells of IPython with the extension loaded, for tests of %gpumem.

Import it after the simulated device. `shell` and `run` are fixtures.
"""

import contextlib
import io
import os
import re
import sys
import textwrap

import pytest
import traitlets.config
import torch
from IPython.core.interactiveshell import InteractiveShell

import stratalloc
from python_shim.testing.let_go import let_go
from stratalloc._native import core as _core

MIB = 1 << 20
HEAD = """
import os, signal, threading, torch, stratalloc
def tensor(mib, device=0):
    return torch.empty(mib << 20, dtype=torch.uint8, device=f"cuda:{device}")
"""
RESET = torch._C._cuda_resetPeakMemoryStats
RESET_ACCUMULATED = torch._C._cuda_resetAccumulatedMemoryStats


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
def shell_fixture(tmp_path_factory):
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
def run_fixture(shell):
    """Runs a cell. Afterwards nothing of the magic is left behind."""
    yield lambda text: Ran(shell, text)
    assert torch._C._cuda_resetPeakMemoryStats is RESET
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
