# SPDX-License-Identifier: Apache-2.0
"""timeline(): what was allocated, by category, and what was below, over time,
with the marks and the refused requests of the program."""

import numpy as np

from stratalloc.telemetry.analysis.over_time import end, over_time
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report.bounds import name


def timeline(walked, bounds):
    """What over_time() has, and {"end", "marks", "marks_in_all", "ooms",
    "ooms_in_all"}: ns and bytes."""
    return {"end": end(walked.run), **over_time(walked, bounds.points),
            **_instants(walked.run, walked.index, bounds.marks)}


def _instants(run, index, most):
    events = run.events
    marks = events[events["kind"] == Kind.MARK]
    ooms = events[(events["kind"] == Kind.OOM) & (events["device"] == index)]
    return {
        "marks": [[time, name(run.scopes[scope])] for time, scope in zip(*(
            column[_spread(len(marks), most)].tolist()
            for column in (marks["time"], marks["scope"])))],
        "marks_in_all": len(marks),
        "ooms": [[time, size] for time, size in zip(*(
            column[_spread(len(ooms), most)].tolist()
            for column in (ooms["time"], ooms["bytes"])))],
        "ooms_in_all": len(ooms)}


def _spread(count, most):
    """Places of at most `most` of so many, evenly spread."""
    return (np.arange(count) if count <= most
            else np.linspace(0, count - 1, most).astype(int))
