# SPDX-License-Identifier: Apache-2.0
"""Writes the table of suites and minors of PyTorch from reports of `./dev test`.

    table.py OUT REPORT...

A REPORT is what report.py wrote with --json, as 2.11.json; OUT is Markdown. A
cell has the cases that passed, and those that failed or were skipped where there
are any; reasons of skips are listed below. "-" is a target without a result.
Exit code 1: a case failed, or a target of the suite has no result. Standard
library only.
"""

import json
import os
import sys
import textwrap

# Target to what it answers, in the order of the table.
SUITES = {
    "//tests/system/e2e:e2e_test": "whole programs",
    "//tests/system/differential:differential_test":
        "random programs beside native",
    "//tests/simulator/cudasim/native:native_test":
        "snapshot, history, pools, statistics: native",
    "//tests/simulator/cudasim/native:ours_test":
        "history, pools, labels, streams: ours",
    "//tests/simulator/cudasim/native:ours_full_test":
        "out of memory, settings, statistics: ours",
    "//tests/simulator/cudasim/native:plain_test":
        "history, pools: ours over cudaMalloc",
    "//tests/simulator/cudasim/operator_bridge:ours_test":
        "graphs, captures, two devices",
    "//tests/simulator/cudasim/operator_bridge:sharing_ours_test":
        "memory shared by processes",
    "//python_shim/torch_bridge/guard:guard_tests":
        "the guard and its operator list",
    "//python_shim/torch_bridge/allocator:allocator_tests":
        "the allocator that torch sees",
    "//python_shim/torch_bridge:core_tests": "the bridge and the core",
    "//python_shim/torch_bridge:virtuals_test": "rows of VIRTUALS.md",
    "//python_shim/stratalloc:package_tests_sanitized":
        "foreign uses, pins, tensor kinds, owners",
    "//python_shim/stratalloc:package_tests_without_device":
        "foreign hooks, scopes without a device",
    "//tests/simulator/cudasim/minors:minors_test":
        "a training step equals the CPU's",
    "//tests/simulator/cudasim:test_torch": "the simulated device: torch's view",
    "//tests/simulator/cudasim/coverage:coverage_test":
        "the simulated device: what wheels want",
}


def cell(target: dict | None) -> str:
    """What one target did under one minor."""
    if target is None:
        return "-"
    parts = [f"{target['passed']}"]
    for kind in ("failed", "skipped"):
        if target[kind]:
            parts.append(f"{target[kind]} {kind}")
    return ", ".join(parts)


def table(reports: dict[str, dict]) -> str:
    """Markdown; `reports`: minor to report."""
    minors = sorted(reports, key=lambda name: [int(n) for n in name.split(".")])
    found = {minor: {one["target"]: one for one in reports[minor]["targets"]}
             for minor in minors}
    lines = ["| suite | target | " + " | ".join(minors) + " |",
             "|---" * (2 + len(minors)) + "|"]
    for target, answers in SUITES.items():
        cells = [cell(found[minor].get(target)) for minor in minors]
        lines.append(f"| {answers} | `{target}` | " + " | ".join(cells) + " |")
    total = [cell(reports[minor]) for minor in minors]
    lines.append("| all | | " + " | ".join(total) + " |")
    return "\n".join(lines + reasons(reports, minors)) + "\n"


def reasons(reports: dict[str, dict], minors: list[str]) -> list[str]:
    """Why cases were skipped: a point of Markdown for each target and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for minor in minors:
        for target in reports[minor]["targets"]:
            for reason, count in target["reasons"].items():
                found.setdefault((target["target"], reason), []).append(
                    f"{count} under {minor}")
    lines = []
    for (target, reason), counts in sorted(found.items()):
        lines += textwrap.wrap(
            f"- `{target}`: {reason or 'no reason'} ({', '.join(counts)})", 100,
            subsequent_indent="  ", break_long_words=False,
            break_on_hyphens=False)
    return ["", "Skipped:", "", *lines] if lines else []


def complete(reports: dict[str, dict]) -> bool:
    """Whether all suites have a result under all minors, and none failed."""
    return all(
        not report["failed"]
        and set(SUITES) <= {one["target"] for one in report["targets"]
                            if one["passed"]}
        for report in reports.values())


def main(arguments: list[str]) -> int:
    out, *paths = arguments
    reports = {}
    for path in paths:
        with open(path, encoding="utf-8") as stream:
            minor = os.path.basename(path).removesuffix(".json")
            reports[minor] = json.load(stream)
    text = table(reports)
    with open(out, "w", encoding="utf-8") as stream:
        stream.write(text)
    print(text, end="")
    return 0 if complete(reports) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
