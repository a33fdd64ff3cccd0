# SPDX-License-Identifier: Apache-2.0
"""Stats: the totals of one device. Totals: a result that is a dict."""

from __future__ import annotations

from typing import Any

from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result
from stratalloc._rendering.table import Row, Table, counted
from stratalloc.sizes import format_size

NOTHING = "stratalloc: CUDA is not initialised under this allocator"


class Totals(dict[str, Any], Result):
    """A result that is a dict, whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"stratalloc.{type(self).__name__} has no {name!r}; it has "
                f"{', '.join(self) or 'nothing before CUDA is initialised'}"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return dict(self)


class Stats(Totals):
    """The totals of report() as a dict, and as attributes: stats().live.

    Bytes, counts and nanoseconds are ints; {"current", "peak"} of allocated,
    reserved, active and requested is a dict. Empty before CUDA is initialised.
    str() is a table for people.
    """

    _evicted: tuple[int, int]

    def __init__(self, values: dict[str, Any], evicted: tuple[int, int]) -> None:
        """evicted: (bytes on host, on disk), of the lists in report()."""
        super().__init__(values)
        self._evicted = evicted

    def _page(self, depth=None, all=False):  # noqa: A002
        return Page(self.parts(), depth, all)

    def parts(self) -> list[str | Table]:
        """What a page consists of."""
        if not self:
            return [NOTHING]
        tiering = "on" if self["config"]["tiering"] else "off"
        tiers = self["tiers"]
        stays = ", ".join(f"{format_size(size)} {reason}"
                          for reason, size in sorted(
                              self["stays"].items(), key=lambda one: -one[1]))
        return [
            f"stratalloc, device {self['device']}, tiering {tiering}",
            Table(("", "now", "peak", "limit"), list(self._rows())),
            f"moved: {format_size(tiers['bytes_evicted'])} out, "
            f"{format_size(tiers['bytes_restored'])} in, "
            f"{format_size(tiers['bytes_to_disk'])} to disk, "
            f"{format_size(tiers['bytes_from_disk'])} from disk",
            f"operators waited {counted(tiers['stalls'], 'time')}, "
            f"{tiers['stall_ns'] / 1e6:.1f} ms",
            *([f"on the device: {stays}"] if stays else [])]

    def _rows(self):
        config, tiers, limit = self["config"], self["tiers"], self["gpu_limit"]

        def row(name, *sizes, level=0):
            return Row(name, tuple("-" if size is None else format_size(size)
                                   for size in sizes), level=level)

        for name in ("allocated", "reserved"):
            yield row(name, self[name]["current"], self[name]["peak"], limit)
        host, disk = self._evicted
        yield row("evicted to host", host, None, None)
        yield row("evicted to disk", disk, None, config["disk_budget"])
        yield row("live, all tiers", self["live"], None, None)
        yield row("host memory used", tiers["host_used"], tiers["host_peak"],
                  config["host_budget"])
        yield row("pinned for it", tiers["host_reserved"],
                  tiers["host_reserved_peak"], config["host_budget"], level=1)

    def __repr__(self):
        if not self:
            return "<stratalloc.Stats of nothing>"
        return (f"<stratalloc.Stats of device {self['device']}: "
                f"{self['allocated']['current']} bytes allocated, "
                f"{self['live']} live>")
