# SPDX-License-Identifier: Apache-2.0
"""Counts what a `bazel test` run did, case by case, and prints it per room.

Reads Bazel's build event file (one JSON object per line); cases come from each
target's test.xml. The last line is `N passed, N failed`, with `long` followed
by the seconds and by how many targets had passed in an earlier run. The exit
code is 0 only when something passed and nothing failed.
"""

import dataclasses
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

_INTERRUPTED = 8  # Bazel's exit code
# So many of the targets that took longest are named.
_SLOWEST = 10
# How many folders of a label name its room, where it is more than one.
_DEPTH = {"allocator": 2, "python_shim": 2, "tests": 3, "tiering": 2}


@dataclasses.dataclass
class Target:
    """One test target: its cases, and what Bazel said about it."""

    label: str
    status: str = "NO_STATUS"
    seconds: float = 0.0
    results: int = 0  # of shards and attempts
    kept: int = 0  # results of an earlier run
    passed: int = 0
    skipped: int = 0
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def resumed(self) -> bool:
        """Whether all of it is the result of an earlier run."""
        return 0 < self.results == self.kept

    @property
    def room(self) -> str:
        parts = self.label.split("//", 1)[-1].split(":")[0].split("/")
        return "/".join(parts[:_DEPTH.get(parts[0], 1)])


def count_cases(target: Target, xml_text: str) -> None:
    """Adds the cases of one test.xml to `target`."""
    for case in ElementTree.fromstring(xml_text).iter("testcase"):
        name = f"{case.get('classname') or ''}.{case.get('name')}".strip(".")
        if case.find("failure") is not None or case.find("error") is not None:
            target.failures.append(name)
        elif (
            case.find("skipped") is not None
            or case.get("result") in ("skipped", "suppressed")
            or case.get("status") == "notrun"
        ):
            target.skipped += 1
            reason = _reason(case)
            target.reasons[reason] = target.reasons.get(reason, 0) + 1
        else:
            target.passed += 1


def _reason(case: ElementTree.Element) -> str:
    """Why a case was skipped, in one line; "" where its test.xml does not say."""
    skipped = case.find("skipped")
    text = "" if skipped is None else skipped.get("message") or ""
    return " ".join(text.split())


def _read_xml(target: Target, result: dict) -> None:
    for output in result.get("testActionOutput", []):
        if output.get("name") != "test.xml":
            continue
        path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                count_cases(target, stream.read())
        except (OSError, ElementTree.ParseError) as error:
            target.failures.append(f"unreadable test.xml: {error}")
    target.results += 1
    target.kept += result.get("cachedLocally", False)
    milliseconds = int(result.get("testAttemptDurationMillis", 0))
    target.seconds += milliseconds / 1000


def read_events(lines) -> list[Target]:
    """All test targets of the run, those that did not build included."""
    targets: dict[str, Target] = {}
    attempts: dict[tuple, dict] = {}
    for line in lines:
        event = json.loads(line)
        kind = event.get("id", {})
        if "testResult" in kind and "testResult" in event:
            key = kind["testResult"]
            # A shard that was tried again counts once, as it ended.
            shard = (key["label"], key.get("run"), key.get("shard"))
            attempts[shard] = event["testResult"]
        elif "testSummary" in kind and "testSummary" in event:
            label = kind["testSummary"]["label"]
            target = targets.setdefault(label, Target(label))
            target.status = event["testSummary"].get(
                "overallStatus", "NO_STATUS"
            )
        elif "targetConfigured" in kind:
            label = kind["targetConfigured"]["label"]
            rule = event.get("configured", {}).get("targetKind", "")
            if rule.endswith("_test rule"):
                targets.setdefault(label, Target(label))
        elif "targetCompleted" in kind:
            label = kind["targetCompleted"]["label"]
            reason = event.get("aborted", {}).get("reason", "")
            if reason == "SKIPPED":
                targets.pop(label, None)  # incompatible with this machine
            elif reason != "USER_INTERRUPTED" and not event.get("completed", {}).get("success"):
                target = targets.setdefault(label, Target(label))
                target.status = "FAILED_TO_BUILD"
    for (label, _, _), result in attempts.items():
        _read_xml(targets.setdefault(label, Target(label)), result)
    for target in targets.values():
        good = target.status in ("PASSED", "FLAKY")
        # Killed, timed out, crashed at exit, or never built: its test.xml, if
        # any, does not say so.
        if not good and not target.failures:
            target.failures.append(target.status.lower().replace("_", " "))
    return sorted(targets.values(), key=lambda target: target.label)


def summarize(targets: list[Target]) -> dict:
    rooms: dict[str, dict] = {}
    for target in targets:
        room = rooms.setdefault(
            target.room,
            {"targets": 0, "passed": 0, "failed": 0, "skipped": 0,
             "seconds": 0.0},
        )
        room["targets"] += 1
        room["passed"] += target.passed
        room["failed"] += len(target.failures)
        room["skipped"] += target.skipped
        room["seconds"] = round(room["seconds"] + target.seconds, 1)
    return {
        "rooms": dict(sorted(rooms.items())),
        "passed": sum(room["passed"] for room in rooms.values()),
        "failed": sum(room["failed"] for room in rooms.values()),
        "skipped": sum(room["skipped"] for room in rooms.values()),
        "resumed": sum(target.resumed for target in targets),
        "targets": [
            {"target": target.label, "passed": target.passed,
             "failed": len(target.failures), "skipped": target.skipped,
             "reasons": dict(sorted(target.reasons.items())),
             "seconds": round(target.seconds, 1)}
            for target in targets
        ],
        "slowest": [
            {"target": target.label, "seconds": round(target.seconds, 1)}
            for target in sorted(targets, key=lambda t: -t.seconds)[:_SLOWEST]
        ],
        "failures": [
            f"{target.label}: {name}"
            for target in targets
            for name in target.failures
        ],
    }


def show(summary: dict, out, long: bool = False) -> None:
    columns = ("targets", "passed", "failed", "skipped", "seconds")
    width = max([len(room) for room in summary["rooms"]] + [4])
    head = "".join(f"{column:>9}" for column in columns)
    print(f"\n{'room':<{width}}{head}", file=out)
    for name, room in summary["rooms"].items():
        row = "".join(f"{room[column]:>9}" for column in columns)
        print(f"{name:<{width}}{row}", file=out)
    if summary["failures"]:
        print("\nfailed:", file=out)
    for failure in summary["failures"]:
        print(f"  {failure}", file=out)
    print(file=out)
    if summary["slowest"]:
        print("the slowest targets, seconds", file=out)
        for row in summary["slowest"]:
            print(f"{row['seconds']:8.1f}  {row['target']}", file=out)
        print(file=out)
    counts = f"{summary['passed']} passed, {summary['failed']} failed"
    if long:
        counts += (f", {summary['wall_seconds']:.0f} s, "
                   f"{summary['resumed']} targets resumed")
    else:
        print(f"{summary['wall_seconds']:.0f} s in all", file=out)
    print(counts, file=out)


def finish(
    events: str,
    seconds: float,
    bazel_status: int = 0,
    long: bool = False,
    out: str | None = None,
) -> int:
    """Prints the report on the event file `events`; the exit code.

    out: a file for the same as JSON.
    """
    with open(events, encoding="utf-8") as stream:
        targets = read_events(stream)
    if bazel_status == _INTERRUPTED:
        ended = [one for one in targets if one.status != "NO_STATUS"]
        why = (f"interrupted, {len(targets) - len(ended)} targets without a "
               "result")
        targets = ended
    else:
        why = f"exit status {bazel_status}"
    summary = summarize(targets)
    # E.g. a BUILD file that does not load: no target was even configured.
    if bazel_status == _INTERRUPTED or bazel_status and not summary["failed"]:
        summary["failed"] += 1
        summary["failures"].append(f"bazel: {why}")
    summary["wall_seconds"] = seconds
    show(summary, sys.stdout, long)
    if out:
        with open(out, "w", encoding="utf-8") as stream:
            json.dump(summary, stream, indent=2)
            stream.write("\n")
    return 0 if summary["passed"] and not summary["failed"] else 1
