# SPDX-License-Identifier: Apache-2.0
"""notes(): what every file says of the recording it came from."""

from stratalloc.telemetry.exports.target import text


def notes(run):
    """Plain values: source, level, what was dropped, what recording cost."""
    found = {"source": run.source, "level": run.level,
             "events": len(run.events), "dropped_events": int(run.dropped),
             "overhead_ns": int(run.overhead), "torn": bool(run.torn),
             "redacted": bool(run.redacted), "started_ns": int(run.started),
             "duration_ns": int(run.duration)}
    if run.stacks_lost:
        found["stacks_lost"] = int(run.stacks_lost)
    for key, value in run.about.items():
        if isinstance(value, (str, int, float, bool)):
            found[f"about_{text(str(key))}"] = (
                text(value) if isinstance(value, str) else value)
    return found
