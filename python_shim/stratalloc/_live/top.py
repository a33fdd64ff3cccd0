# SPDX-License-Identifier: Apache-2.0
"""`stratalloc top`: a live process, on a screen, line by line, or as JSON.

Reads only. On a terminal a screen of its own, which is gone afterwards; in a
pipe a plain page for each interval. Exit codes: 0 fine, and so is that the
process ended while it was watched, which a line on stderr tells; 1 there is
none to be seen, or it could not be asked; 2 usage, and several processes
without --pid, which are listed; 141 the reader of the pipe has left; Ctrl-C and q
are 0.
"""

import contextlib
import select
import sys
import time

from stratalloc._live import card, client, view
from stratalloc._live.keyboard import Keyboard
from stratalloc._rendering import table as _table
from stratalloc._terminal import command as _command

FASTEST = 0.5  # seconds from one look to the next, at least
_ONCE = 0.5  # between the two samples of --once, whose speeds are of it


def main(args):
    """Runs cli's `top`; returns the exit code."""
    interval = _interval(args.interval)
    try:
        pid, path = _chosen(args.pid)
        if args.json:
            return _write(args.json, pid, path)
        if not args.once and sys.stdout.isatty():
            return _on_screen(pid, path, interval)
        return _in_lines(pid, path, _ONCE if args.once else interval, args.once)
    except KeyboardInterrupt:
        return _command.EXIT_OK
    except client.AttachError as error:
        return _say(error, _command.EXIT_FAILED)


def _interval(text):
    try:
        seconds = float(text)
        if not FASTEST <= seconds <= 86400:
            raise ValueError
    except ValueError:
        raise _command.UsageError(
            f"--interval {text}: give seconds, {FASTEST} to 86400") from None
    return seconds


def _chosen(pid):
    """(pid, path) of the one that is meant."""
    if pid is not None:
        return pid, client.path_of(pid)
    found, silent = client.all_of_them()
    if len(found) == 1:
        return found[0][:2]
    if not found:
        raise client.AttachError(
            "no process of yours can be seen: start one with `stratalloc run "
            "--live`, or with STRATALLOC=1 STRATALLOC_CONF=live:on; it is "
            "there from its first use of CUDA on" + "".join(
                f"; {one}" for one in silent))
    print(view.text(view.listed(found), sys.stderr), file=sys.stderr)
    raise _command.UsageError(
        f"{len(found)} processes can be seen: choose one of them with --pid")


def _say(what, code):
    print(f"stratalloc top: {what}", file=sys.stderr)
    return code


def _cards(sample):
    return {one["device"]: card.look(one, sample["pid"])
            for one in sample["devices"]}


def _write(file, pid, path):
    """One sample as it is, with what the driver says of its cards."""
    sample = client.ask(pid, path)
    for one in sample["devices"]:
        seen = card.look(one, pid)
        one["card"] = {
            "busy_percent": seen.busy, "used": seen.used, "why": seen.why,
            "others": None if seen.others is None else [
                {"pid": other, "bytes": size} for other, size in seen.others]}
    return _command.EXIT_OK if file.write(sample) else _command.EXIT_FAILED


def _in_lines(pid, path, interval, once):
    """A plain page for each interval, until the process ends."""
    seen = view.View()
    sample = client.ask(pid, path)
    try:
        while True:
            seen.add(sample, _cards(sample))
            if seen.seconds is not None:
                print(time.strftime("%H:%M:%S"))
                print(_page(seen) + "\n", flush=True)
                if once:
                    return _command.EXIT_OK
            time.sleep(interval)
            sample = _patiently(pid, path, interval)
    except client.Ended as error:
        if seen.seconds is None:  # nothing was shown: the one look is
            print(_page(seen), flush=True)
        return _say(error, _command.EXIT_OK)


def _page(seen):
    width, _ = _table.terminal(sys.stdout)
    return seen.page(width).text(sys.stdout)


def _patiently(pid, path, interval):
    """A sample, however long a process that is stopped takes. It is asked once,
    and what is late is told once in an interval."""
    question = None
    try:
        while True:
            try:
                if question is None:
                    question = client.Question(pid, path)
                return question.wait()
            except client.Late as error:
                _say(error, None)
                time.sleep(interval)
    finally:
        if question is not None:
            question.close()


def _on_screen(pid, path, interval):
    from rich.live import Live

    console = _command.console(sys.stdout)
    # Before anything is taken from the terminal: what is wrong is said there.
    seen = view.View()
    sample = client.ask(pid, path)
    seen.add(sample, _cards(sample))
    with Live(console=console, screen=True, auto_refresh=False,
              redirect_stdout=False, redirect_stderr=False) as live:
        screen = _Screen(console, live, seen)
        try:
            if sys.stdin.isatty():
                with Keyboard(sys.stdin, live.stop, screen.again) as keys:
                    screen.watch(pid, path, interval, keys)
            else:
                screen.watch(pid, path, interval, None)
            return _command.EXIT_OK
        except KeyboardInterrupt:
            return _command.EXIT_OK
        except client.Ended as error:
            ended = error
    return _say(ended, _command.EXIT_OK)


class _Screen:
    """What is shown, and when it is looked at again."""

    def __init__(self, console, live, seen):
        self._console, self._live, self._seen = console, live, seen
        self._note = ""
        self._undisturbed = contextlib.nullcontext

    def again(self):
        self._live.start()
        self.show()

    def show(self):
        width, height = _table.terminal(sys.stdout)  # it may have changed
        self._console.width, self._console.height = width, height
        word = view.ORDERS[self._seen.order][0]
        last = self._note or (f"sorted by {word}; t total, p peak, c churn, "
                              "q quit")
        page = self._seen.page(width, height, last)
        with self._undisturbed():
            self._live.update(page, refresh=True)

    def watch(self, pid, path, interval, keys):
        """Until q is pressed; what client says of the process is raised."""
        if keys is not None:
            self._undisturbed = keys.undisturbed
        self.show()
        question, due = None, time.monotonic() + interval
        try:
            while True:
                if question is None and time.monotonic() >= due:
                    due = time.monotonic() + interval
                    question = self._asked(pid, path)
                ready = _ready(keys, question, due)
                if keys in ready and not self._obeyed(keys.pressed()):
                    return
                if question is not None and self._answered(question):
                    question.close()
                    question = None
        finally:
            if question is not None:
                question.close()

    def _asked(self, pid, path):
        try:
            return client.Question(pid, path)
        except client.Late as error:
            self._late(error)
            return None

    def _late(self, error):
        self._note = str(error)
        self.show()

    def _answered(self, question):
        """True if it is over, and what it said is shown."""
        try:
            sample = question.advance()
        except client.Late as error:
            self._late(error)
            return False  # it is on its way
        if sample is None:
            return False
        self._note = ""
        self._seen.add(sample, _cards(sample))
        self.show()
        return True

    def _obeyed(self, pressed):
        """False if it is time to go."""
        if not pressed:
            return False
        for key in pressed:
            if key in "qQ\x04":
                return False
            if key in view.ORDERS and key != self._seen.order:
                self._seen.order = key
                self.show()
        return True


def _ready(keys, question, due):
    """Which of them has something, by then."""
    files = [one for one in (keys, question) if one is not None]
    wait = client.PATIENCE if question is not None else due - time.monotonic()
    return select.select(files, [], [], max(wait, 0))[0]
