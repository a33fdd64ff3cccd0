# SPDX-License-Identifier: Apache-2.0
"""Runs a Bazel command with lines of progress, and reports on its tests.

    python3 -m tests.repository.report.run [--json FILE] [--long]
        [--seconds FILE] [--every S] build|test ARGUMENTS...

Passes Bazel's warnings and errors on to stderr. Between them, a line at least
every 30 seconds says how far it is; on a terminal one line is kept up to date.
With `test`, the report comes on stdout behind it (report.py). SIGINT and
SIGTERM interrupt Bazel, which keeps what has passed: the next run goes on from
there. Files: build/events.json; --seconds: what each target took, for the time left.
"""

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

from tests.repository.report import progress, report

_BUILD = "build"
_EVENTS = os.path.join(_BUILD, "events.json")
_POLL = 0.5  # seconds between two looks at the event file


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seconds",
                        default=os.path.join(_BUILD, "seconds.json"))
    parser.add_argument("--every", type=float, default=25)
    parser.add_argument("verb", choices=("build", "test"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    os.makedirs(_BUILD, exist_ok=True)
    if os.path.exists(_EVENTS):
        os.remove(_EVENTS)
    state = progress.Progress(_last_seconds(args.seconds), os.cpu_count() or 1)
    began = time.monotonic()
    status = _Run(state, _Screen(args.every), began).run(_command(args))
    if args.verb == "build":
        return status
    if not os.path.exists(_EVENTS):
        print(f"dev: bazel test did not start (status {status})",
              file=sys.stderr)
        return 1
    with open(args.seconds, "w", encoding="utf-8") as file:
        json.dump(state.seconds(), file, indent=1, sort_keys=True)
    return report.finish(_EVENTS, seconds=time.monotonic() - began,
                         bazel_status=status, long=args.long, out=args.json)


def _last_seconds(path: str) -> dict[str, float]:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def _command(args) -> list[str]:
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return [
        "bazel", args.verb, f"--build_event_json_file={_EVENTS}",
        "--curses=no", f"--color={'yes' if colours else 'no'}",
        "--show_progress", "--show_progress_rate_limit=1",
        "--ui_event_filters=-info", *args.arguments,
    ]


class _Screen:
    """stderr: lines that stay, and on a terminal one that is replaced."""

    def __init__(self, every: float):
        self._terminal = (sys.stderr.isatty()
                          and os.environ.get("TERM") != "dumb")
        self._every = 1.0 if self._terminal else every
        self._next = self._every

    def message(self, text: bytes) -> None:
        self.clear()
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()

    def progress(self, state: progress.Progress, elapsed: float) -> None:
        """Prints the line when it is due."""
        if elapsed < self._next:
            return
        self._next = elapsed + self._every
        line = "» " + state.line(elapsed)
        self.clear()
        if self._terminal:
            line = line[:shutil.get_terminal_size().columns - 1]
        sys.stderr.write(line if self._terminal else line + "\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class _Run:
    """One Bazel command; reads its output and its event file as they grow."""

    def __init__(self, state: progress.Progress, screen: _Screen,
                 began: float):
        self._state = state
        self._screen = screen
        self._began = began
        self._events = None
        self._rest = b""  # of an event that is not yet written to its end

    def run(self, command: list[str]) -> int:
        # In a session of its own: Ctrl-C reaches it once, from here.
        bazel = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number,
                          lambda *_: bazel.send_signal(signal.SIGINT))
        self._follow(bazel.stdout.fileno())
        status = bazel.wait()
        self._read_events()
        self._screen.clear()
        if self._events:
            self._events.close()
        return status

    def _follow(self, output: int) -> None:
        lines = b""
        while True:
            if select.select([output], [], [], _POLL)[0]:
                chunk = os.read(output, 1 << 16)
                *whole, lines = (lines + chunk).split(b"\n")
                for line in whole:
                    self._line(line + b"\n")
                if not chunk:
                    if lines:
                        self._line(lines)
                    return
            self._read_events()
            self._screen.progress(self._state, self._elapsed())

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if not (self._state.output(text, self._elapsed())
                or text.startswith("INFO: ")):
            self._screen.message(line)

    def _read_events(self) -> None:
        if self._events is None:
            try:
                self._events = open(_EVENTS, "rb")
            except FileNotFoundError:
                return
        *whole, self._rest = (self._rest + self._events.read()).split(b"\n")
        for line in whole:
            if line.strip():
                self._state.event(json.loads(line))

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


if __name__ == "__main__":
    sys.exit(main())
