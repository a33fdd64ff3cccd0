# SPDX-License-Identifier: Apache-2.0
"""Curves: what a device held over a run, by category, as a picture.

Drawn of as many moments as can be told apart (over_time.py), the peak and the
end among them. The run is walked when somebody looks, so a page that is printed
costs nothing for it.

Categories are those of the events. What a module's call allocates is temporary
in them to its end; the ledger, and with it holders() and peak(), has what is
still there when the call ends as an activation.
"""

from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc.telemetry import replay
from stratalloc.telemetry.analysis.over_time import over_time
from stratalloc.telemetry.model import Kind

POINTS = 480  # of all curves; the picture has 626 units for them


class Curves(_plot_svg.Picture):
    """Of one device of a run."""

    def __init__(self, run, device):
        self._run, self._device = run, device

    def svg(self):
        return self.areas().svg()

    def areas(self):
        """The _plot_svg.Areas: allocated by category, with lines for what is
        reserved, for the card where that is near, and for the tiers below."""
        run, walked = self._run, replay.Replay(self._run, self._device)
        held = over_time(walked, POINTS)
        lines = {"reserved": held["reserved"]}
        capacity = walked.device.capacity
        if capacity and walked.reserved.most() > capacity / 2:
            lines["the card"] = [capacity] * len(held["times"])
        lines.update((f"on {tier}", sizes)
                     for tier, sizes in held["tiers"].items())
        marks = run.events[run.events["kind"] == Kind.MARK]
        return _plot_svg.Areas(
            f"allocated on device {self._device} by category, over time",
            held["times"], run.duration, held["categories"], lines,
            [(time, run.scopes[scope]) for time, scope in zip(
                marks["time"].tolist(), marks["scope"].tolist())])
