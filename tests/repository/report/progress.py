# SPDX-License-Identifier: Apache-2.0
"""State of a running Bazel command, and the line that describes it.

Counts come from the build event file (targets) and from Bazel's own progress
lines (actions). The time left is an estimate: the seconds that each target took
last time, else the mean of those that have ended; and the pace of the actions.
Thread-safety: one thread. Reads no clock: callers pass elapsed seconds.
"""

import dataclasses
import re

_ACTIONS = re.compile(r"\[([\d,]+) / ([\d,]+)\] ")
# Lines that Bazel prints while it has no actions to count.
_BEFORE = re.compile(r"(Loading|Analyzing):")
_GOOD = ("PASSED", "FLAKY")
# Bazel counts actions as it finds them; the number is whole once it stands.
_GROWING = 60.0


@dataclasses.dataclass
class _Test:
    exclusive: bool = False
    seconds: float = 0.0
    ended: bool = False


class Progress:
    """What has been done, what failed, and how long the rest takes.

    seconds: by label, what a test target took in the last run.
    cores: how many tests and actions run beside each other.
    """

    def __init__(self, seconds: dict[str, float], cores: int):
        self._last = seconds
        self._cores = cores
        self._tests: dict[str, _Test] = {}
        self._failed: set[str] = set()
        self._done = self._total = 0
        self._began: float | None = None  # when the first action ended
        self._grown = -_GROWING  # when the number of actions last grew
        self._stage = "starting Bazel"
        self._continues = False  # the last line of output was progress

    def event(self, event: dict) -> None:
        """One object of the build event file."""
        kind = event.get("id", {})
        if "targetConfigured" in kind:
            self._configured(kind["targetConfigured"]["label"],
                             event.get("configured", {}))
        elif "targetCompleted" in kind:
            self._completed(kind["targetCompleted"]["label"], event)
        elif "testResult" in kind and "testResult" in event:
            self._result(kind["testResult"]["label"], event["testResult"])
        elif "testSummary" in kind and "testSummary" in event:
            label = kind["testSummary"]["label"]
            self._test(label).ended = True
            if event["testSummary"].get("overallStatus") not in _GOOD:
                self._failed.add(label)

    def output(self, line: str, elapsed: float) -> bool:
        """True if `line` of Bazel's output is progress, which is kept here."""
        actions, before = _ACTIONS.match(line), _BEFORE.match(line)
        if actions:
            total = self._total
            self._done, self._total = (
                int(count.replace(",", "")) for count in actions.groups())
            if 0 < total < self._total:
                self._grown = elapsed
            if self._began is None and self._done:
                self._began = elapsed
        elif before:
            self._stage = line.strip()
        # Its further lines are indented.
        self._continues = bool(actions or before or
                               self._continues and line.startswith("    "))
        return self._continues

    def seconds(self) -> dict[str, float]:
        """By label, what the tests that ran took; the others as last time."""
        ran = {label: round(test.seconds, 1)
               for label, test in self._tests.items() if test.seconds}
        return {**self._last, **ran}

    def line(self, elapsed: float) -> str:
        """E.g. `3:30  812 / 1204 actions, 45 / 268 tests, 1 failed, ...`."""
        parts = []
        if self._total:
            parts.append(f"{self._done} / {self._total} actions")
        if self._tests:
            ended = sum(test.ended for test in self._tests.values())
            parts.append(f"{ended} / {len(self._tests)} test targets")
        if not parts:
            parts.append(self._stage)
        if self._tests or self._failed:
            parts.append(f"{len(self._failed)} failed")
        if self._began is not None:
            parts.append(_left(*self._estimate(elapsed)))
        minutes, seconds = divmod(int(elapsed), 60)
        return f"{minutes}:{seconds:02}  {', '.join(parts)}"

    def _test(self, label: str) -> _Test:
        return self._tests.setdefault(label, _Test())

    def _configured(self, label: str, configured: dict) -> None:
        if configured.get("targetKind", "").endswith("_test rule"):
            test = self._test(label)
            test.exclusive = "exclusive" in configured.get("tag", [])

    def _completed(self, label: str, event: dict) -> None:
        reason = event.get("aborted", {}).get("reason")
        if reason == "SKIPPED":
            self._tests.pop(label, None)  # incompatible with this machine
        elif reason is None and not event.get("completed", {}).get("success"):
            self._failed.add(label)
            if label in self._tests:
                self._tests[label].ended = True

    def _result(self, label: str, result: dict) -> None:
        cached = (result.get("cachedLocally")
                  or result.get("executionInfo", {}).get("cachedRemotely"))
        if not cached:
            milliseconds = int(result.get("testAttemptDurationMillis", 0))
            self._test(label).seconds += milliseconds / 1000

    def _estimate(self, elapsed: float) -> tuple[float, bool]:
        """Seconds left, and whether this is no more than a lower bound: of the
        tests without a length from last time most are still to come, or one
        that runs alone, which is long; or Bazel still finds actions."""
        ran = [test.seconds for test in self._tests.values() if test.seconds]
        known = ran or list(self._last.values())
        mean = sum(known) / len(known) if known else 0.0
        left = {label: self._last.get(label, mean)
                for label, test in self._tests.items() if not test.ended}
        alone = sum(seconds for label, seconds in left.items()
                    if self._tests[label].exclusive)
        together = sum(left.values()) - alone
        # Seconds of a core: what the tests did not use, the actions used.
        used = (elapsed - self._began) * self._cores - sum(ran)
        actions = max(0, self._total - self._done - len(left))
        together += max(0.0, used) / self._done * actions
        unknown = [label for label in left if label not in self._last]
        bound = len(unknown) > len(ran) or any(
            self._tests[label].exclusive for label in unknown)
        bound = bound or elapsed - self._grown < _GROWING
        return alone + together / self._cores, bound


def _left(seconds: float, bound: bool) -> str:
    if seconds >= 90:
        amount = f"{seconds / 60:.0f} min left"
    else:
        amount = f"{seconds:.0f} s left"
    return ("more than " if bound else "about ") + amount
