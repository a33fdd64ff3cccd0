# SPDX-License-Identifier: Apache-2.0
"""Tables of bench and demo, on a pipe and in a terminal: no number is cut."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

_BENCH = """
from stratalloc._terminal import command as _command
from stratalloc.bench import main
row = main.entry("malloc/free 4 MiB, two threads, two streams, recorded on one",
                 [123456789.0], [987654321.0], "native of another name")
row.update(ratio_low=0.123, ratio_high=12345.678, ours_calls=1234.0,
           native_calls=5678.0, goal="<= 0.123456789x")
row["pass"] = True
main._show(_command.console(), {"machine": {"device": "simulated"}, "rounds": 15,
                           "benchmarks": []}, "allocations", [row])
"""
_BENCH_CELLS = ("recorded on one", "123456789", "native of another name "
                "987654321", "0.12-12345.68", "<= 0.123456789x", "held")

_DEMO = """
from stratalloc._terminal import command as _command
from stratalloc.demo import story
from stratalloc.demo import tables
big = 123456789 << 20
row = {**dict.fromkeys(tables._SUMMED, big),
       "owner": "an.owner.with.a.name.of." + "many.parts." * 3 + "0"}
values = {"layers": [row], "report": {}, "simulated": True}
for name in ("peak_allocated", "device_capacity", "bytes_restored",
             "bytes_evicted", "host_used", "host_peak", "host_reserved",
             "host_reserved_peak", "host_budget", "bytes_to_disk",
             "bytes_from_disk", "peak_reserved", "parameter_bytes",
             "restored_before_use"):
    values[name] = big
story._tell_ours(_command.console(), {**values, "error": None, "queries": []})
"""
_DEMO_CELLS = ("many.parts.0", "123456789.0", "33/33/33", "120563.3 GiB",
               "host, in use", "host, pinned")


def _command(text):
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment["TERM"] = "xterm"
    return [sys.executable, "-c", text], environment


def _on_a_pipe(text):
    command, environment = _command(text)
    done = subprocess.run(command, capture_output=True, text=True,
                          check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _in_a_terminal(text, columns):
    command, environment = _command(text)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ,
                struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave,
                          env=environment) as process:
        os.close(slave)
        parts = []
        try:
            while part := os.read(master, 1 << 16):
                parts.append(part)
        except OSError:
            pass  # how a terminal says that nobody writes any more
    os.close(master)
    shown = b"".join(parts).decode()
    assert process.returncode == 0, shown
    return shown


@pytest.mark.parametrize("text,cells", [(_BENCH, _BENCH_CELLS),
                                        (_DEMO, _DEMO_CELLS)])
def test_nothing_is_cut(text, cells):
    for shown in (_on_a_pipe(text), _in_a_terminal(text, 60),
                  _in_a_terminal(text, 200)):
        assert "…" not in shown, shown
        for cell in cells:
            assert cell in shown, (cell, shown)


def test_a_table_is_as_wide_as_it_is(tmp_path):
    """Lines are not filled up to the width that nothing is cut at."""
    del tmp_path
    lines = _on_a_pipe(_BENCH).splitlines()
    assert max(map(len, lines)) < 250, lines


def test_colours_are_for_terminals():
    assert "\x1b[" not in _on_a_pipe(_BENCH)
    assert "\x1b[" in _in_a_terminal(_BENCH, 200)
