# SPDX-License-Identifier: Apache-2.0
"""The lines at the bottom of a program's terminal: what they leave alone."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time

import pytest

GIVE_UP = 60  # seconds, where a test would wait for ever

# What is drawn is between these two.
_DRAWN = re.compile(r"\x1b7((?:\x1b\[\d+;1H[^\x1b]*\x1b\[K)+)\x1b8")
_MADE = re.compile(r"\x1b7\x1b\[r\x1b8\x1b\[J(?:\x1bD){4}\x1b\[4A\x1b7"
                   r"\x1b\[1;(\d+)r\x1b8")
_GONE = "\x1b7\x1b[r\x1b8\x1b[J"

_PROGRAM = """
    import os, sys
    from python_shim.stratalloc._live.tests import live_samples
    from stratalloc._live import beside
    beside._EVERY = 0.05
    beside.sample.take = live_samples.sample
    files = [open("/dev/null") for _ in range(int(os.environ["FILES"]))]
    strip = beside.Beside.on(sys.stderr)
"""


class _Terminal:
    def __init__(self, program, lines=24, columns=80, command=None, **more):
        self._ours, theirs = pty.openpty()
        self.written = ""
        self.resize(lines, columns)
        self.program = subprocess.Popen(
            [sys.executable, *(command or (
                "-c", textwrap.dedent(_PROGRAM) + textwrap.dedent(program)))],
            stdin=subprocess.PIPE, stdout=theirs, stderr=theirs,
            env={**os.environ, "TERM": "xterm", "FILES": "0", **more})
        os.close(theirs)

    def resize(self, lines, columns):
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ,
                    struct.pack("4H", lines, columns, 0, 0))

    def until(self, found):
        """Waits until found(what was written) is true."""
        give_up = time.monotonic() + GIVE_UP
        while not found(self.written):
            assert select.select([self._ours], [], [], GIVE_UP)[0]
            assert time.monotonic() < give_up, self.written
            self.written += os.read(self._ours, 1 << 16).decode()

    def end(self):
        """The exit code; all has been written then, by the last who could."""
        self.program.stdin.close()
        code = self.program.wait(timeout=GIVE_UP)
        with contextlib.suppress(OSError):  # nobody has it open any more
            while some := os.read(self._ours, 1 << 16):
                self.written += some.decode()
        os.close(self._ours)
        return code


def _drawn(written):
    return len(_DRAWN.findall(written))


def test_what_the_program_writes_is_whole_and_the_strip_is_gone():
    terminal = _Terminal(r"""
        for i in range(40):
            print(f"line {i}")
            sys.stderr.write(f"\rbar {i}")
        os.system("echo a child")
        sys.stdin.readline()
        strip.close()
        print("after")
    """)
    terminal.until(lambda text: _drawn(text) >= 3 and "a child" in text)
    terminal.program.stdin.write(b"\n")
    terminal.program.stdin.flush()
    assert terminal.end() == 0
    (region,) = _MADE.findall(terminal.written)
    assert region == "20"
    left = _DRAWN.sub("", _MADE.sub("", terminal.written))
    text, gone, after = left.partition(_GONE)
    assert gone and after == "after\r\n"
    assert text == "".join(f"line {i}\r\n\rbar {i}" for i in range(40)) + (
        "a child\r\n")
    # Four lines, at the bottom, of 80 cells at most.
    rows = re.findall(r"\x1b\[(\d+);1H([^\x1b]*)", _DRAWN.findall(
        terminal.written)[-1])
    assert [row for row, _ in rows] == ["21", "22", "23", "24"]
    assert max(len(line) for _, line in rows) <= 80
    assert rows[1][1] == ("36 MiB of 48 MiB (75 %), reserved 48 MiB, on host "
                          "8 MiB, on disk 0 B")
    assert rows[3][1] == "holds most: GPT.head 20 MiB, GPT.layers.0 16 MiB"


def test_a_terminal_that_changes_gets_a_new_region():
    terminal = _Terminal("sys.stdin.readline(); strip.close()")
    terminal.until(_drawn)
    terminal.resize(30, 40)
    terminal.until(lambda text: len(_MADE.findall(text)) == 2)
    terminal.until(lambda text: "\x1b[30;1H" in text)
    assert terminal.end() == 0
    assert _MADE.findall(terminal.written) == ["20", "26"]


@pytest.mark.parametrize("files", ["0", "10"])  # whose numbers have one digit
def test_a_program_that_is_killed_leaves_no_region(files):
    terminal = _Terminal("os.system('true'); sys.stdin.readline()", FILES=files)
    terminal.until(_drawn)
    terminal.program.send_signal(signal.SIGKILL)
    assert terminal.end() == -signal.SIGKILL
    assert terminal.written.endswith(_GONE)


def test_a_fork_has_no_strip_and_waits_for_no_child_of_ours():
    terminal = _Terminal(r"""
        child = os.fork()
        if child == 0:
            strip.close()
            os._exit(7)
        assert os.wait()[0] == child
        try:
            os.wait()
        except ChildProcessError:
            print("no other child")
        sys.stdin.readline()
        strip.close()
    """)
    terminal.until(lambda text: "no other child" in text and _drawn(text))
    assert _GONE not in _MADE.sub("", terminal.written)
    assert terminal.end() == 0


@pytest.mark.parametrize("lines, term", [(11, "xterm"), (24, "dumb")])
def test_where_there_is_no_room_there_is_no_strip(lines, term):
    terminal = _Terminal("print(strip)", lines=lines, TERM=term)
    assert terminal.end() == 0
    assert terminal.written == "None\r\n"


def test_run_takes_it_away_however_the_program_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch\nx = torch.ones(1 << 20, device='cuda')\n"
                      "input()\nx[0].nothing\n")
    terminal = _Terminal("", command=("-m", "stratalloc", "run", "--live",
                                      "--simulate", "64MiB", str(script)),
                         XDG_RUNTIME_DIR=str(tmp_path))
    terminal.until(lambda text: "4 MiB of 64 MiB (6 %)" in text)
    terminal.program.stdin.write(b"\n")
    terminal.program.stdin.flush()
    assert terminal.end() == 1
    shown, gone, after = terminal.written.rpartition(_GONE)
    assert gone and "AttributeError" in shown and not _DRAWN.search(after)
    assert after.startswith("stratalloc: simulated: ")
