# SPDX-License-Identifier: Apache-2.0
"""Python blocks and commands, each in a process of its own.

A process that has imported torch and loaded the simulated device, and never
called it, forks one child per snippet: the child is the first to use CUDA.
"""

import functools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback

from bazel import programs
from tests.system.snippets import manifest

SECONDS = 60  # that a snippet may take


def prepare():
    """Once, before the first in_fork()."""
    from stratalloc import simulate

    simulate.load("256MiB")
    import torch
    import stratalloc.telemetry.commands  # noqa: F401  numpy, typer

    torch.set_num_threads(1)


class Names(dict):
    """Globals of a block: what it does not define itself is a stand-in, made
    when it is first used."""

    def __missing__(self, name):
        made = _STAND_INS.get(name)
        if made is None:
            raise KeyError(name)
        self[name] = made(self)
        return self[name]


def _model_class(_names):
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.Linear(64, 64)
            self.head = torch.nn.Linear(64, 8)

        def forward(self, x):
            return self.head(self.encoder(x).relu())

    return Model


def _batch(_names):
    import torch

    return torch.ones(4, 64, device="cuda")


def _step(names):
    return lambda: names["model"](names["batch"]).sum().backward()


def _module(name):
    return lambda _names: __import__(name)


_STAND_INS = {
    "Model": _model_class, "model": lambda names: names["Model"]().to("cuda"),
    "batch": _batch, "x": _batch, "step": _step, "train": _step,
    **{name: _module(name) for name in ("torch", "stratalloc",
                                        "prometheus_client")}}


def block(text, folder, enabled=False):
    """(exit code, output) of a Python block as it stands. enabled: what the
    text around it says has been done before."""
    for old, new in manifest.REPLACED.items():
        text = text.replace(old, new)
    code = compile(text, "<snippet>", "exec")

    def run():
        if enabled:
            import stratalloc

            stratalloc.enable()
        exec(code, Names(__name__="__main__"))

    return in_fork(run, folder)


@functools.cache  # two pages have the same block
def fresh(text, folder):
    """The same in an interpreter that has imported nothing."""
    from stratalloc import simulate

    text = text.replace(".../", simulate.package().directory() + "/")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True,
                          text=True, check=False, cwd=folder, timeout=SECONDS)
    return done.returncode, done.stdout + done.stderr


def command(line, folder):
    """(exit code, output) of `stratalloc ...`, whose words have no shell."""
    from stratalloc.cli import command_line as cli

    found = shlex.split(line, comments=True)[1:]
    return in_fork(lambda: cli.main(found), folder)


def program(line, folder):
    """The same of `stratalloc run ...`, whose process ends as a program's."""
    done = programs.run("-m", *shlex.split(line), cwd=folder, merged=True,
                        timeout=SECONDS)
    return done.returncode, done.stdout


def in_fork(function, folder):
    """(exit code, output) of a child that calls it."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out:
        pid = os.fork()
        if pid == 0:
            _child(function, folder, out)
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        return (os.waitstatus_to_exitcode(status),
                out.read().decode("utf-8", "replace"))


def _child(function, folder, out):
    """Never returns: exit handlers here are the parent's."""
    code = 1
    try:
        signal.alarm(SECONDS)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
        os.chdir(folder)
        try:
            code = function() or 0
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # pylint: disable=protected-access
