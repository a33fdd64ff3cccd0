# SPDX-License-Identifier: Apache-2.0
"""notes(): what every file says of the recording it came from; missing(): what
people hear of events that are missing."""

from stratalloc.telemetry.exports.target import text


def notes(run):
    """Plain values: source, level, what was dropped, what recording cost."""
    found = {"source": run.source, "level": run.level,
             "events": len(run.events), "dropped_events": int(run.dropped),
             "overhead_ns": int(run.overhead), "torn": bool(run.torn),
             "redacted": bool(run.redacted), "started_ns": int(run.started),
             "duration_ns": int(run.duration)}
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
    """"" where no event is missing."""
    if not run.dropped:
        return ""
    older = f"{run.left_out} older events were recorded and not kept"
    lost = (f"{run.dropped - run.left_out} events are missing (overwritten "
            "before they were read, of threads that found no ring, or of "
            "unknown kinds)")
    said = (lost if not run.left_out else older
            if run.left_out == run.dropped else f"{older}; {lost}")
    if 0 < run.complete_from <= run.duration:
        return (f"{said}; what is told of the time before "
                f"{run.complete_from / 1e9:.3f} s lacks some")
    return f"{said}; what is told lacks some"
