# SPDX-License-Identifier: Apache-2.0
"""report(), stats() and memory_summary(): what the core knows, read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device
from stratalloc._native.device_metrics import TIERS
from stratalloc._rendering import tree as _tree
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import frame
from stratalloc._reports.stats import Stats, Totals
from stratalloc._tiering import pin_table as _pin_table
from stratalloc._tiering import tiers as _tiers

if TYPE_CHECKING:
    import pandas

_OF_A_LAYER = (
    "owner", "category", "live", "peak", "at_peak", "allocated", "freed",
    "blocks", "blocks_allocated", "blocks_freed", "device", "host", "disk",
    "evicted", "restored", "to_disk", "from_disk", "stalls", "stall_ns")


class Report(Totals):
    """Everything about one device as a dict, and as attributes.

    stratalloc.report() says what the keys are; bytes, counts and nanoseconds
    are ints. Empty before CUDA is initialised. str() is memory_summary().
    """

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame with a line for each owner and category: `layers`.

        Raises:
          ImportError: pandas is not installed.
        """
        return frame(_OF_A_LAYER, self.get("layers", []))

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        parts = _totals(self).parts()
        if self:
            held, heading = self["layers"], f"device {self['device']} "
            below = any(row[tier] for row in held for tier in TIERS[1:])
            now = {"bytes": "live", **({tier: tier for tier in TIERS if any(
                row[tier] for row in held)} if below else {})}
            parts += ["", _tree_of(held, now, heading + "now"),
                      "", _tree_of(held, {"bytes": "at_peak"},
                                   heading + "at its peak")]
        return Page(parts, depth, all, **how)

    def __repr__(self) -> str:
        if not self:
            return "<stratalloc.Report of nothing>"
        return (f"<stratalloc.Report of device {self['device']}: "
                f"{self['allocated']['current']} bytes allocated, "
                f"{self['live']} live, {len(self['layers'])} layers>")


def report(device: Device = None) -> Report:
    """Everything about one device: totals, `layers`, `handles`.

    `stays` has the allocated bytes by why they are on the device: "activations",
    "library workspaces", "pinned by a graph", "shared with another process",
    "in use by an operator", "in private pools", "raw memory", "kept by a rule"
    (_tiering/rules.py), and "evictable" for what may leave. Reasons without
    bytes are left out. `pinned` has what stays beyond an operator by owner and
    reason, `pins` what pin() keeps by who pinned it.

    `placement` has the free bytes that are kept apart now, because some memory
    has handles of its own. `separate_classes`: what lifetime classes need
    beyond what they would need together, as `separated` in fragmentation().
    `private_pools`: free bytes in the handles of pools of CUDA graphs and
    MemPools. A job that needs nearly all of the card may move bytes for this.

    `scopes` has, for each owner, `live` and `peak_owned`: its own bytes on all
    tiers, now and at most; `peak_allocated`: the most that everybody had on the
    device right after an allocation of it or of an owner below it, while it ran,
    0 if it made none since the last reset; and `share_at_peak`: its own bytes
    on the device when that held the most. Only the shares add up, to
    torch.cuda.max_memory_allocated(). `entered`: how often it
    was, by calls, construction and moves to a device; `time_ns`: the host time
    in it, in nanoseconds, with that of owners below it, `own_ns` without;
    `backward_nodes`, `backward_ns` and `own_backward_ns` likewise. These are of
    all devices together; what runs on a device may run later. What a layer
    computes again during backward is below it, "layer/recomputation".

    `limits` has what limit() set: `owner`, `bytes`, and what it has `owned`.
    `nodes_without_scope` counts autograd nodes of unknown scope,
    `compiled_backwards` the graphs that compiled autograd ran in the place of
    nodes (what those allocate is owned by "(unattributed)"),
    `scopes_not_interned` scopes that are "(other scopes)" because there were
    more than 262144 names.

    Returns: Report, a dict; empty before CUDA is initialised.

    Raises:
      NotEnabledError: before enable().
      ValueError: the device is none of this machine's CUDA devices.
      RuntimeError: the device is lost.
    """
    _state.require()
    if not _core.initialized():
        return Report()
    # torch is there by now
    from stratalloc._ownership import modules as _modules

    _modules.relabel_all()
    values = _core.report(_tiers.device_index(device))
    if "error" in values:
        raise RuntimeError(values["error"])
    values["compiled_backwards"] = _modules.compiled_backwards()
    values["pins"] = _pin_table.listed(values["device"])
    _complete_peaks(values)
    return Report(values)


def held(device=None):
    """What the report's `layers` say of who holds, or held at the peak: a dict
    with `device` and `rows`; {} before CUDA is initialised. The report itself
    sums up every path there ever was."""
    _state.require()
    if not _core.initialized():
        return {}
    # torch is there by now
    from stratalloc._ownership import modules as _modules

    _modules.relabel_all()
    return _core.held(_tiers.device_index(device))


class _Part:
    """What is summed up over the owners at and below one part of a path."""

    __slots__ = ("below", "peak", "ns", "backward_ns")

    def __init__(self):
        self.below = {}  # name -> _Part
        self.peak = self.ns = self.backward_ns = 0


def _complete_peaks(values):
    """What happens while a module runs happens while those around it run."""
    shares, root, parts = {}, _Part(), []
    for row in values["layers"]:
        shares[row["owner"]] = shares.get(row["owner"], 0) + row["at_peak"]
    for row in values["scopes"]:
        part = root
        for name in _tree.parts(row["owner"]):
            if name not in part.below:
                part.below[name] = _Part()
            part = part.below[name]
            part.peak = max(part.peak, row["peak_allocated"])
            part.ns += row["own_ns"]
            part.backward_ns += row["own_backward_ns"]
        parts.append(part)
    for row, part in zip(values["scopes"], parts):
        row["peak_allocated"] = part.peak
        row["time_ns"], row["backward_ns"] = part.ns, part.backward_ns
        row["share_at_peak"] = shares.get(row["owner"], 0)


def stats(device: Device = None) -> Stats:
    """The totals of report() without the lists.

    Args:
      device: as torch takes it; None: the current one.

    Returns: Stats, a dict of ints (bytes, counts, nanoseconds), texts and
    dicts of these; {} before CUDA is initialised.

    Raises:
      NotEnabledError: before enable().
      ValueError: the device is none of this machine's CUDA devices.
      RuntimeError: the device is lost.
    """
    return _totals(report(device))


def _totals(values):
    lists = values.get("layers", [])
    return Stats({key: value for key, value in values.items()
                  if not isinstance(value, list)},
                 tuple(sum(row[tier] for row in lists)
                       for tier in ("host", "disk")))


def memory_summary(device: Device = None, depth: int | None = None,
                   all: bool = False) -> str:  # noqa: A002
    """Text for people: what is on which tier, what moved, who owns it.

    The owners are two trees, the largest first, as long as the terminal is
    high: what each has now, and on which tier; and what each had on the device
    when that held the most. torch's own summary (torch.cuda.memory_summary)
    speaks of the device only.

    Args:
      device: as torch takes it; None: the current one.
      depth: levels of the trees below their totals, with all of their lines.
      all: all lines of the trees.

    Returns: str, of several lines; one that says so before CUDA is initialised.

    Raises:
      NotEnabledError: before enable().
      ValueError: depth is no int, or below 0, or the device is none of this
        machine's CUDA devices.
      RuntimeError: the device is lost.
    """
    return report(device)._page(depth, all,
                                more="all=True or depth=N has them").text()


def _tree_of(held, columns, heading):
    """Numbers of one moment. columns: title -> key of a row of `held`."""
    return _tree.Tree(
        [(row["owner"], row["category"], *map(row.get, columns.values()))
         for row in held], list(map(_tree.Column, columns)), heading)
