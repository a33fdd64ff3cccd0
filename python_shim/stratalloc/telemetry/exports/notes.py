# SPDX-License-Identifier: Apache-2.0
"""notes(): what every file says of the recording it came from."""

from stratalloc.telemetry import gaps
from stratalloc.telemetry.exports.target import text


def notes(run):
    """Plain values: source, level, what was dropped, what recording cost."""
    lacks = gaps.missing(run)
    found = {"source": run.source, "level": run.level,
             "events": len(run.events), "dropped_events": int(run.dropped),
             "overhead_ns": int(run.overhead), "torn": bool(run.torn),
             "redacted": bool(run.redacted), "started_ns": int(run.started),
             "duration_ns": int(run.duration), "exact": not lacks}
    if lacks:
        found["missing"] = text(lacks)
    if run.ignored:
        found["ignored_events"] = sum(run.ignored.values())
    if run.host_segments:
        found["host_segments"] = int(run.host_segments)
        found["host_bytes"] = int(run.host_bytes)
    if run.dropped and 0 <= run.complete_from <= run.duration:
        found["complete_from_ns"] = int(run.complete_from)
    if run.left_out:
        found["left_out_events"] = int(run.left_out)
    if run.names_lost:
        found["names_lost"] = int(run.names_lost)
    if run.stacks_lost:
        found["stacks_lost"] = int(run.stacks_lost)
    for key, value in run.about.items():
        if isinstance(value, (str, int, float, bool)):
            found[f"about_{text(str(key))}"] = (
                text(value) if isinstance(value, str) else value)
    return found


def missing(run):
    """What people read beside an answer; "" where the file lacks nothing."""
    return "; ".join(filter(None, [gaps.missing(run), *gaps.asides(run)]))
