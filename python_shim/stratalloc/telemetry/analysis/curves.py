# SPDX-License-Identifier: Apache-2.0
"""Curves: what a device held over a run, by category, as a picture.

Drawn of as many moments as can be told apart, the peak and the end among them;
at each of them the numbers are exact where the run is. The run is walked when
somebody looks, so a page that is printed costs nothing for it.

Categories are those of the events. What a module's call allocates is temporary
in them to its end; the ledger, and with it holders() and peak(), has what is
still there when the call ends as an activation.
"""

import numpy as np

from stratalloc import _plot_svg
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.exports import samples, tiers
from stratalloc.telemetry.model import Kind

_POINTS = 240  # of each curve; the picture has 626 units for them


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
        moments = np.unique(np.concatenate(
            [samples.samples(curve, _POINTS)[0]
             for curve in (walked.allocated, walked.reserved)]))
        # The first number is from the start on, whatever happened first.
        times = [0, *run.events["time"][moments].tolist()]
        parts = {
            model.CATEGORIES[category]: _numbers(curve, moments)
            for category, curve in samples.by_category(walked).items()}
        lines = {"reserved": _numbers(walked.reserved, moments)}
        capacity = walked.device.capacity
        if capacity and walked.reserved.most() > capacity / 2:
            lines["the card"] = [capacity] * len(times)
        below = tiers.Tiers(run, self._device)
        there = [below.at(moment) for moment in [replay.BEFORE, *moments]]
        for tier in model.TIERS[1:]:
            lines[f"on {tier}"] = [each.get(tier, 0) for each in there]
        marks = run.events[run.events["kind"] == Kind.MARK]
        return _plot_svg.Areas(
            f"allocated on device {self._device} by category, over time",
            times, run.duration, parts, lines,
            [(time, run.scopes[scope]) for time, scope in zip(
                marks["time"].tolist(), marks["scope"].tolist())])


def _numbers(curve, moments):
    return [curve.base, *curve.after[moments].tolist()]
