# SPDX-License-Identifier: Apache-2.0
"""`stratalloc top`: which process, in a pipe, on a terminal, and its ends.

The processes that are looked at have no device: their samples are made.
"""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import textwrap
import time

import pytest

from python_shim.stratalloc._live.tests import live_samples
from stratalloc._live import client, protocol, top

_PROGRAM = """
    import sys, time
    from python_shim.stratalloc._live.tests import live_samples
    from stratalloc._live import server
    began = time.monotonic()
    def take():
        at = time.monotonic() - began
        moved = {"out": int(at * (64 << 20)), "in": 0, "to_disk": 0,
                 "from_disk": 0}
        return {**live_samples.sample(at, live_samples.device(moved=moved)),
                "pid": server.os.getpid()}
    print(server.Server(take).path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    folder = tempfile.mkdtemp(prefix="live-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _program():
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(_PROGRAM)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline().endswith(b".sock\n")
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def _command(*arguments):
    return [sys.executable, "-m", "stratalloc", "top", *map(str, arguments)]


def _top(*arguments):
    return subprocess.run(_command(*arguments), capture_output=True, text=True,
                          timeout=120, check=False)


def test_the_only_one_is_shown():
    with _program() as program:
        done = _top("--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"process {program.pid}: train.py --lr 1" in done.stdout
    assert re.search(r"^moved: out (6[0-9]|7[0-9])\S* MiB/s", done.stdout,
                     re.M), done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_has_raw_integers():
    with _program() as program:
        done = _top("--json", "-", "--pid", program.pid)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["pid"] == program.pid
    (device,) = found["devices"]
    assert device["allocated"] == 36 << 20 and device["layers"][0]["host"] == (
        8 << 20)
    assert device["card"] == {"busy_percent": None, "used": None,
                              "why": "the device is simulated", "others": None}


def test_several_are_listed_and_nothing_is_asked():
    with _program() as one, _program() as other:
        done = _top("--once")
        assert (done.returncode, done.stdout) == (2, "")
        lines = done.stderr.splitlines()
        assert sorted(line.split()[0] for line in lines[1:3]) == sorted(
            str(program.pid) for program in (one, other))
        assert "train.py --lr 1" in lines[1]
        assert lines[3] == ("stratalloc top: 2 processes can be seen: choose "
                            "one of them with --pid")
        assert f"process {other.pid}:" in _top(
            "--once", "--pid", other.pid).stdout


def test_none_is_said_with_what_to_do():
    done = _top()
    assert (done.returncode, done.stdout) == (1, "")
    assert "no process of yours can be seen" in done.stderr
    assert "run --live" in done.stderr and done.stderr.count("\n") == 1
    done = _top("--pid", os.getpid())
    assert done.returncode == 1 and f"process {os.getpid()} cannot be seen" in (
        done.stderr)


@pytest.mark.parametrize("given", ["0.1", "x", "inf", "nan"])
def test_an_interval_that_none_is(given):
    done = _top("--interval", given)
    assert done.returncode == 2 and "--interval" in done.stderr


@pytest.mark.parametrize("words", [("--once",), ("--json", "-"),
                                   ("--interval", "0.5")])
def test_top_without_a_reader_ends_quietly_with_141(words):
    reader, writer = os.pipe()
    os.close(reader)
    with _program():
        done = subprocess.run(_command(*words), stdout=writer, text=True,
                              stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_process_that_ends_in_a_pipe_is_a_sentence():
    with _program() as program:
        top = subprocess.Popen(_command("--interval", "0.5"), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert re.fullmatch(r"\d\d:\d\d:\d\d\n", top.stdout.readline())
        program.kill()
        program.wait()
        out, error = top.stdout.read(), top.stderr.read()
        assert top.wait(timeout=120) == 0
    assert error.startswith(f"stratalloc top: process {program.pid} has ended")
    assert f"process {program.pid}:" in out


def test_who_reads_no_further_ends_it():
    with _program():
        top = subprocess.Popen(_command("--interval", "0.5"), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        top.stdout.readline()
        top.stdout.close()
        assert top.stderr.read() == ""
        assert top.wait(timeout=120) == 141


@contextlib.contextmanager
def _stopped():
    """(path, listener) of a process that takes nothing from its queue, which
    has room for one."""
    path = f"{os.environ['XDG_RUNTIME_DIR']}/{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(0)
        listener.setblocking(False)
        yield path, listener


def _answer(listener):
    connected, _ = listener.accept()
    with connected:
        assert connected.recv(64) == protocol.REQUEST
        connected.sendall(protocol.line({
            **live_samples.sample(), "pid": os.getpid()}))


def test_who_is_late_in_a_pipe_is_asked_once(monkeypatch, capsys):
    monkeypatch.setattr(client, "PATIENCE", 0.05)
    slept = []
    with _stopped() as (path, listener):

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 3:
                _answer(listener)

        monkeypatch.setattr(top.time, "sleep", sleep)
        assert top._patiently(os.getpid(), path, 7.0)["pid"] == os.getpid()
        with pytest.raises(BlockingIOError):
            listener.accept()  # no other one asks
    said = capsys.readouterr().err.splitlines()
    assert slept == [7.0] * 3 and len(said) == 3
    assert all("has not answered for" in line for line in said)


def test_who_is_late_on_a_screen_is_asked_once(monkeypatch):
    monkeypatch.setattr(client, "PATIENCE", 0)
    screen, notes = top._Screen(None, None, None), []
    monkeypatch.setattr(screen, "_late", notes.append)
    with _stopped() as (path, _), contextlib.closing(
            client.Question(os.getpid(), path)) as question:
        assert not screen._answered(question), "it is still on its way"
    assert len(notes) == 1


def test_a_full_queue_is_told_once_in_an_interval(monkeypatch, capsys):
    slept, waits = [], client.Question.wait
    with _stopped() as (path, listener), socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.connect(path)

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 2:
                listener.accept()[0].close()
                monkeypatch.setattr(client.Question, "wait", wait)

        def wait(question):
            _answer(listener)
            return waits(question)

        monkeypatch.setattr(top.time, "sleep", sleep)
        assert top._patiently(os.getpid(), path, 7.0)["pid"] == os.getpid()
    said = capsys.readouterr().err.splitlines()
    assert slept == [7.0] * 2 and said == [
        f"stratalloc top: process {os.getpid()} does not take connections: it "
        "is stopped, or many ask"] * 2


GIVE_UP = 60  # seconds, where a test would wait for ever


class _Terminal:
    """A terminal in which `top` runs."""

    def __init__(self, *arguments):
        self._ours, theirs = pty.openpty()
        self._settings = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.written = ""

        def take_terminal():
            os.setsid()
            os.close(os.open(os.ttyname(theirs), os.O_RDWR))

        self.top = subprocess.Popen(
            _command("--interval", "0.5", *arguments), stdin=theirs,
            stdout=theirs, stderr=theirs, preexec_fn=take_terminal)

    def until(self, text, times=1):
        """Waits until that has been written so often."""
        give_up = time.monotonic() + GIVE_UP
        while self.written.count(text) < times:
            ready, _, _ = select.select([self._ours], [], [], 60)
            assert ready and time.monotonic() < give_up, self.written[-4000:]
            self.written += os.read(self._ours, 1 << 16).decode()

    def press(self, key):
        os.write(self._ours, key.encode())

    def end(self):
        """(exit code, what came after the screen was gone)."""
        code = self.top.wait(timeout=60)
        while select.select([self._ours], [], [], 0)[0]:
            self.written += os.read(self._ours, 1 << 16).decode()
        assert termios.tcgetattr(self._theirs) == self._settings
        os.close(self._theirs)
        os.close(self._ours)
        screen, gone, after = self.written.rpartition("\x1b[?1049l")
        assert gone and screen.count("\x1b[?1049h") == screen.count(
            "\x1b[?1049l") + 1
        assert "\x1b[?25h" in self.written.rpartition("\x1b[?25l")[2]
        return code, after.replace("\x1b[?25h", "").strip()


@pytest.mark.parametrize("how, code", [
    ("q", 0), ("\x03", 0), (signal.SIGTERM, 143)])
def test_the_terminal_is_as_it_was(how, code):
    with _program() as program:
        terminal = _Terminal()
        terminal.until(f"process {program.pid}: train.py")
        terminal.until("q quit")
        if isinstance(how, str):
            terminal.press(how)
        else:
            terminal.top.send_signal(how)
        assert terminal.end() == (code, "")


def test_a_key_sorts_and_nothing_is_cleared_in_between():
    with _program():
        terminal = _Terminal()
        terminal.until("sorted by total")
        terminal.press("c")
        terminal.until("sorted by churn")
        terminal.press("x")
        terminal.press("p")
        terminal.until("sorted by peak")
        terminal.press("q")
        assert terminal.end()[0] == 0
    # A screen that is cleared before it is drawn flickers.
    drawn = terminal.written.partition("\x1b[?1049h")[2].partition("sorted")[2]
    assert "\x1b[2J" not in drawn and "\x1b[J" not in drawn
    assert "\x1b[36m" in terminal.written  # bars


def test_a_process_that_ends_while_it_is_watched():
    with _program() as program:
        terminal = _Terminal()
        terminal.until("q quit")
        program.kill()
        program.wait()
        code, after = terminal.end()
    assert code == 0
    assert after.startswith(f"stratalloc top: process {program.pid} has ended")


def test_a_process_that_is_stopped_is_told_as_that():
    with _program() as program:
        terminal = _Terminal()
        terminal.until("q quit")
        program.send_signal(signal.SIGSTOP)
        terminal.press("p")  # keys are obeyed meanwhile
        terminal.until("sorted by peak")
        terminal.until(f"process {program.pid} has not answered for")
        program.send_signal(signal.SIGCONT)
        terminal.until("q quit", terminal.written.count("q quit") + 1)
        terminal.press("q")
        assert terminal.end()[0] == 0


def test_a_suspended_top_gives_the_terminal_back():
    """Nobody's job here, it is not stopped, and goes on at once."""
    with _program():
        terminal = _Terminal()
        terminal.until("q quit")
        terminal.press("\x1a")
        terminal.until("\x1b[?1049l")
        terminal.until("\x1b[?1049h", 2)
        terminal.press("q")
        assert terminal.end()[0] == 0


def test_a_suspension_waits_for_what_is_being_written(monkeypatch):
    from stratalloc._live import keyboard

    told = []
    monkeypatch.setattr(keyboard.os, "kill", lambda pid, number: told.append(
        "suspended"))
    controller, terminal = pty.openpty()
    with os.fdopen(controller), os.fdopen(terminal) as stream:
        with keyboard.Keyboard(stream, lambda: told.append("pause"),
                               lambda: told.append("resume")) as keys:
            with keys.undisturbed():
                signal.raise_signal(signal.SIGTSTP)
                told.append("written")
            assert told == ["written", "pause", "suspended", "resume"]
            with keys.undisturbed():
                pass
            assert len(told) == 4, "once"


def test_no_color_has_none(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with _program():
        terminal = _Terminal()
        terminal.until("q quit")
        terminal.press("q")
        assert terminal.end()[0] == 0
    assert not re.search(r"\x1b\[[0-9;]*m", terminal.written)
