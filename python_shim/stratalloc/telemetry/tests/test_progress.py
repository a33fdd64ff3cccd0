# SPDX-License-Identifier: Apache-2.0
"""Bars of long work: on a terminal alone, gone before the answer, and nothing
for whoever does not look."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

import formats
import made_runs
from stratalloc.telemetry import progress
from stratalloc.telemetry.exports import snapshot

# Seconds are set: how fast this machine is must not matter.
_COMMAND = """
import sys
from stratalloc.cli import command_line as cli
from stratalloc.telemetry import progress
progress.AFTER, progress.EVERY = float(sys.argv[1]), 0
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return formats.export(made_runs.many(9000), "snapshot.pickle",
                          tmp_path_factory.mktemp("made"))


def on_a_terminal(after, *argv, terminal_out=False, **more):
    """(stdout, what stderr's terminal got)."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
            [sys.executable, "-c", _COMMAND, str(after), *map(str, argv)],
            stdout=theirs if terminal_out else subprocess.PIPE, stderr=theirs,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm-256color", **more}) as process:
        os.close(theirs)
        told = b""
        while True:
            try:
                some = os.read(ours, 1 << 16)
            except OSError:  # nobody has the other end any more
                break
            if not some:
                break
            told += some
        out = b"" if terminal_out else process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, told
    return out.decode(), told.decode()


def test_a_bar_goes_from_nothing_to_nearly_all(file, tmp_path):
    out, told = on_a_terminal(0, "convert", file, "--to", "timeline", "-o",
                              tmp_path / "made")
    assert out.count("\n") == 1 and "timeline of" in out
    for what in ("looking at events", "reading stacks", "writing events"):
        shares = [int(one) for one in re.findall(
            what + r"[^%]*?(\d+)%", told)]
        assert shares[0] <= 1 and shares[-1] >= 99 and len(shares) > 50
        assert shares == sorted(shares)


def test_bars_are_gone_before_the_answer(file):
    """Each is erased: its line, and the cursor comes back."""
    _, told = on_a_terminal(0, "summary", file, terminal_out=True)
    bars, _, answer = told.rpartition("reading stacks")
    assert bars and "\x1b[2K" in answer.partition("allocated")[0]
    assert "%" not in answer.partition("allocated")[2]
    assert told.count("\x1b[?25l") == told.count("\x1b[?25h")
    alone = on_a_terminal(1e9, "summary", file, terminal_out=True)[1]
    assert told.count("\n") == alone.count("\n")


def test_json_on_stdout_is_json_alone(file):
    out, told = on_a_terminal(0, "summary", file, "--json", "-")
    assert json.loads(out) and "reading stacks" in told


def test_no_color_has_none(file):
    plain = on_a_terminal(0, "summary", file, NO_COLOR="1")[1]
    colour = on_a_terminal(0, "summary", file)[1]
    of_colour = re.compile(r"\x1b\[[\d;]*3[1-9][\d;]*m")
    assert of_colour.search(colour) and not of_colour.search(plain)
    assert "reading stacks" in plain


@pytest.mark.parametrize("after, more", [(1e9, {}), (0, {"TERM": "dumb"})])
def test_soon_done_or_on_a_dumb_terminal_shows_nothing(file, after, more):
    assert on_a_terminal(after, "summary", file, **more)[1] == ""


def test_a_pipe_gets_nothing(file):
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, "0", "summary", str(file)],
        capture_output=True, text=True, check=True)
    assert done.stderr == "" and "allocated" in done.stdout


def test_without_rich_there_is_no_bar(file, tmp_path):
    """rich is what draws; reading goes on without it."""
    (tmp_path / "rich.py").write_text("raise ImportError('none')")
    out, told = on_a_terminal(
        0, "summary", file,
        PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert told == "" and "allocated" in out


def test_whoever_does_not_look_gets_what_was_given():
    rows = iter([1, 2])
    assert progress.over(rows, "reading", 2) is rows


class _Terminal:
    """A stream that is a terminal, and breaks."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def fileno(self):
        raise OSError

    def write(self, _):
        raise OSError("it is gone")

    flush = write


def test_a_terminal_that_breaks_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "AFTER", 0)
    run = made_runs.story()
    with progress.shown(_Terminal()):
        snapshot.write(run, tmp_path / "one")
    snapshot.write(run, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.fixture(name="terminal")
def _terminal(monkeypatch):
    """(a stream, what was written to it so far)."""
    monkeypatch.setattr(progress, "AFTER", 0)
    monkeypatch.setattr(progress, "EVERY", 0)
    ours, theirs = pty.openpty()

    def told():
        """A terminal passes on in pieces: all of it is what comes before a
        word that is written last."""
        stream.write("<that is all>")
        stream.flush()
        found = b""
        while not found.endswith(b"<that is all>"):
            found += os.read(ours, 1 << 16)
        return found.decode().removesuffix("<that is all>")

    with open(theirs, "w", encoding="utf-8") as stream:
        yield stream, told
    os.close(ours)


def test_a_loop_that_is_left_leaves_no_bar(terminal):
    stream, told = terminal
    with progress.shown(stream):
        with pytest.raises(KeyError):
            for _ in progress.over(range(9), "left in the middle"):
                raise KeyError
        for _ in progress.over(range(3), "another"):
            pass
    text = told()
    left, _, another = text.partition("another")
    assert "left in the middle" in left
    assert "left in the middle" not in another
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")


def test_a_loop_that_somebody_keeps_leaves_no_bar(terminal):
    stream, told = terminal
    with progress.shown(stream):
        kept = progress.over(range(9), "kept")
        next(kept)
    kept.close()
    text = told()
    assert "kept" in text and text.endswith("\x1b[1A\x1b[2K")  # up, and erased
