# SPDX-License-Identifier: Apache-2.0
"""What a part of a program did to memory: before, at its peak, after.

    with Measuring() as measuring:
        ...
    print(measuring.result())

What other threads do meanwhile is in it. Nothing is switched on and nothing is
waited for: numbers are the allocator's counters, and a picture over time needs
events, which are recorded where they are asked for, or are recorded anyway.

torch's peaks begin anew with it, as after torch.cuda.reset_peak_memory_stats(),
so that afterwards torch.cuda.max_memory_allocated() and stratalloc.peak() are
those of this part, too. A reset inside of it is heard, and one around it that
measures as well hears this one.
"""

import contextlib
import dataclasses
import sys
import threading
import time

from stratalloc._hooks import resets as _resets
from stratalloc._hooks import witness as _witness
from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._recording import levels as _levels
from stratalloc._recording import trace as _trace
from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc._rendering import tree as _tree
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result, Shown, dicts, frame
from stratalloc._rendering.table import Row, Table, counted, refused
from stratalloc._reports import diff as _diff
from stratalloc._reports import holders as _holders
from stratalloc._reports import reports as _reports
from stratalloc._reports.stats import Stats
from stratalloc.sizes import format_size

_MOVED = {"evicted": "out", "restored": "in", "to_disk": "to disk",
          "from_disk": "from disk"}
TOP = 10  # lines of a tree below its total


@dataclasses.dataclass(frozen=True)
class Moment:
    """One device at one moment; sizes in bytes."""

    allocated: int
    reserved: int
    live: int
    allocated_in_all: int  # cumulative, as those below
    blocks_in_all: int
    refused: int
    tiers: dict
    mark: _diff.Mark
    on_device: dict  # category -> bytes


_NOTHING = Moment(0, 0, 0, 0, 0, 0, {}, _diff.Mark("before", 0, 0, {}), {})


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """What the part did on one device, in bytes, counts and nanoseconds.

    Attributes:
      device: int.
      allocated, reserved: {"before", "peak", "after"}, as torch has them.
      live: {"before", "after"}, on all tiers.
      allocated_in_all, blocks_in_all: what was allocated, freed or not.
      refused: requests that ended in torch.OutOfMemoryError.
      moved: {"evicted", "restored", "to_disk", "from_disk"}.
      stalls, stall_ns: how often and how long operators waited for memory.
      kept: Growth, who holds more or less than before.
      at_peak: Holders, who held what the device held at the peak.
    """

    device: int
    allocated: dict
    reserved: dict
    live: dict
    allocated_in_all: int
    blocks_in_all: int
    refused: int
    moved: dict
    stalls: int
    stall_ns: int
    kept: _diff.Growth
    at_peak: _holders.Holders
    _bars: _plot_svg.Bars

    def to_dict(self):
        found = {name: value for name, value in vars(self).items()
                 if name not in ("kept", "at_peak", "_bars")}
        return {**found, "kept": self.kept.total,
                "rows": dicts(self.kept.rows)}


class CellMemory(Result):
    """What a cell did to memory; also a mapping with the keys of to_dict().

    Attributes:
      time_ns: int, how long it took.
      error: the class of the exception that ended it, or "".
      devices: list of DeviceMemory, of those that held something in it.
      run: what was recorded meanwhile, a telemetry Run, or None.
    """

    def __init__(self, time_ns, error, devices, run=None, remarks=()):
        self.time_ns, self.error, self.devices = time_ns, error, devices
        self.run = run
        self._remarks = list(remarks)
        self._top, self._with_peak = TOP, False

    def showing(self, top=TOP, peak=False):
        """How it is shown: lines of each tree; with who held the peak, too."""
        self._top, self._with_peak = top, peak
        return self

    def to_dict(self):
        """{"time_ns", "error", "devices": [{"device", "allocated", "reserved",
        "live", "allocated_in_all", "blocks_in_all", "refused", "moved",
        "stalls", "stall_ns", "kept", "rows"}]}; rows as stratalloc.diff() has
        them, which add up to what is kept."""
        return {"time_ns": self.time_ns, "error": self.error,
                "devices": [one.to_dict() for one in self.devices]}

    def to_pandas(self):
        """A pandas.DataFrame with a line for each device and owner that holds
        more or less; ImportError without pandas."""
        return frame(["device", *(field.name for field in dataclasses.fields(
            _diff.Change))], [
                {"device": one.device, **row} for one in self.devices
                for row in dicts(one.kept.rows)])

    def _page(self, depth=None, all=False):  # noqa: A002
        took = f"the cell took {_plot_svg.shown_time(self.time_ns)}"
        if self.error:
            took += f" and ended with {self.error}"
        parts = [took, *self._remarks]
        for one in self.devices:
            parts += self._of(one, None if all else self._top)
        return Page(parts, depth, all)

    def _repr_html_(self):
        return self._page().html()

    def _of(self, one, top):
        yield self._picture(one)
        yield Table((f"device {one.device}", "before", "peak", "after", "kept"),
                    list(_rows(one)))
        yield from _told(one)
        if one.kept.rows:
            yield from _first(one.kept._page(), top)
        if self._with_peak:
            yield from _first(one.at_peak._page(), top)

    def _picture(self, one):
        if self.run is None:
            return one._bars
        from stratalloc.telemetry.analysis.curves import Curves

        return Curves(self.run, one.device)

    def __repr__(self):
        return (f"<stratalloc.CellMemory of {self.time_ns / 1e9:.3f} s: "
                + (", ".join(f"{one.kept.total:+d} bytes on device {one.device}"
                             for one in self.devices) or "no device memory")
                + ">")


def _rows(one):
    def row(name, before, peak, after):
        return Row(name, (format_size(before),
                          "-" if peak is None else format_size(peak),
                          format_size(after), _diff.signed(after - before)))

    for name in ("allocated", "reserved"):
        found = getattr(one, name)
        yield row(name, found["before"], found["peak"], found["after"])
    if any(one.live[when] != one.allocated[when]
           for when in ("before", "after")):
        yield row("live, all tiers", one.live["before"], None,
                  one.live["after"])


def _told(one):
    """Sentences of what a table of memory does not show."""
    if one.blocks_in_all:
        yield (f"allocated in all: {format_size(one.allocated_in_all)} in "
               f"{counted(one.blocks_in_all, 'block')}")
    if any(one.moved.values()):
        yield "moved: " + ", ".join(
            f"{format_size(one.moved[name])} {where}"
            for name, where in _MOVED.items())
    if one.stalls:
        yield (f"operators waited {counted(one.stalls, 'time')}, "
               f"{one.stall_ns / 1e6:.1f} ms")
    if one.refused:
        yield f"{refused(one.refused)}: out of memory"


def _first(page, top):
    """Parts of a page without its pictures, `top` lines of its trees."""
    return [part if not isinstance(part, _tree.Tree) else part.table(
                None, None if top is None else top + 1, "--top N shows more")
            for part in page.parts if not isinstance(part, _plot_svg.Picture)]


class Measuring:
    """A context manager; result() when it has ended.

    trace: whether events are recorded where the level does not have them.
    """

    def __init__(self, trace=False):
        self._wants_trace = trace
        self._lock = threading.Lock()  # of _peaks: threads reset, too

    def __enter__(self):
        self.ended, self._error = False, ""
        self._trace, self._remarks = None, []
        self._before, self._after = {}, {}
        self._peaks = {}  # device -> (Holders, reserved bytes)
        self._refused = {}  # device -> requests, of which torch knows no more
        with contextlib.ExitStack() as stack:
            with self._telling():
                self._before = _moments("before")
                for device in self._before:
                    sys.modules["torch"].cuda.reset_peak_memory_stats(device)
            if _state.is_enabled():
                stack.callback(_resets.before_each(
                    sys.modules["torch"], self._note,
                    self._note_refused).put_back)
                if self._wants_trace or _levels.events():
                    self._trace = stack.enter_context(_trace.trace())
            self._open = stack.pop_all()
        self._began = time.perf_counter_ns()
        return self

    def __exit__(self, kind, error, trace):
        self._time = time.perf_counter_ns() - self._began
        self._error = "" if kind is None else kind.__name__
        trace, self._trace = self._trace, None
        with self._telling():
            self._open.close()
            self._trace = trace
        self.ended = True
        with self._telling():
            self._note()
            self._after = _moments("after")

    @contextlib.contextmanager
    def _telling(self):
        """What cannot be measured is told; the program goes on."""
        try:
            yield
        except (ImportError, OSError, RuntimeError, ValueError) as problem:
            self._remarks.append(f"not all was measured: {problem}")

    def result(self):
        """CellMemory, once it has ended."""
        run = None if self._trace is None else self._trace.run()
        devices = [
            one for one in (self._device(index) for index in self._after)
            if one.allocated["peak"] or any(one.live.values())
            or one.reserved["before"] != one.reserved["after"]]
        remarks = list(self._remarks)
        if run is not None:
            from stratalloc.telemetry import gaps

            # What is older than the cell is no gap of the cell's.
            remarks += filter(None, [gaps.missing(run, lost_only=True)])
        if not devices and not remarks:
            remarks = [why_nothing() or "no memory of a device was used"]
        return CellMemory(self._time, self._error, devices, run, remarks)

    def _note(self):
        """The most until now, before a reset makes it forgotten."""
        for device, values in _opened():
            held, reserved = _holders.peak(device), values["reserved"]["peak"]
            with self._lock:
                known, most = self._peaks.get(device, (None, 0))
                if known is None or known.total < held.total:
                    known = held
                self._peaks[device] = known, max(most, reserved)

    def _note_refused(self, device):
        """Ahead of a reset, one at a time: torch's counter begins anew."""
        with self._telling():
            self._refused[device] = (self._refused.get(device, 0)
                                     + _refused(device))

    def _device(self, device):
        before = self._before.get(device, _NOTHING)
        after = self._after[device]
        at_peak, reserved = self._peaks[device]

        def since(name):
            return after.tiers[name] - before.tiers.get(name, 0)

        def three(name, peak):
            return {"before": getattr(before, name), "peak": peak,
                    "after": getattr(after, name)}

        mark = dataclasses.replace(before.mark, device=device)
        return DeviceMemory(
            device, three("allocated", at_peak.total),
            three("reserved", reserved),
            {"before": before.live, "after": after.live},
            after.allocated_in_all - before.allocated_in_all,
            after.blocks_in_all - before.blocks_in_all,
            self._refused.get(device, 0) + after.refused - before.refused,
            {name: since("bytes_" + name) for name in _MOVED},
            since("stalls"), since("stall_ns"),
            _diff.diff(mark, after.mark), at_peak,
            _plot_svg.Bars(f"allocated on device {device} by category", [
                ("before", before.on_device),
                ("peak", _holders.bytes_by_category(at_peak.rows)),
                ("after", after.on_device)]))


def _opened():
    """(device, its report) of those that the program has used."""
    if not _core.initialized():
        return
    for device in range(sys.modules["torch"].cuda.device_count()):
        values = _reports.report(device)
        if values["opened"]:
            yield device, values


def _moments(name):
    return {device: _moment(name, device, values)
            for device, values in _opened()}


def _moment(name, device, values):
    layers = values["layers"]
    held = _diff.by_owner(layers)
    on_device = {}
    for row in layers:
        on_device[row["category"]] = (on_device.get(row["category"], 0)
                                      + row["device"])
    return Moment(
        values["allocated"]["current"], values["reserved"]["current"],
        sum(size for size, _ in held.values()),
        sum(row["allocated"] for row in layers),
        sum(row["blocks_allocated"] for row in layers),
        _refused(device), values["tiers"],
        _diff.Mark(name, device, sum(size for size, _ in held.values()),
                     held), on_device)


def _refused(device):
    return sys.modules["torch"].cuda.memory_stats(device)["num_ooms"]


class Now(Shown):
    """What devices hold now, or held at their peak."""

    def __init__(self, top=TOP, peak=False):
        self._top, self._parts = top, []
        for device, _ in _opened():
            self._parts += Stats.parts(_reports.stats(device))
            held = (_holders.peak(device) if peak
                    else _holders.holders(device=device))
            self._parts += ["", held._page()]

    def _page(self, depth=None, all=False):  # noqa: A002
        parts = []
        for part in self._parts:
            parts += [part] if not isinstance(part, Page) else _first(
                part, None if all else self._top)
        return Page(parts or [why_nothing() or "no device is used yet"])

    def _repr_html_(self):
        return self._page().html()


def why_nothing():
    """Why nothing is measured in this process, and what to do; "" if it is, or
    will be as soon as a device is used."""
    if _state.is_enabled():
        return ""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return ("nothing is measured: another allocator is in place since CUDA "
                f"was initialised{_witness.by_whom()}; restart the kernel, and "
                "run `import stratalloc; stratalloc.enable()` before the first "
                "use of CUDA")
    if _state.active is not None:
        return ""  # it comes with the first use of CUDA
    return ("nothing is measured yet: run `import stratalloc; "
            "stratalloc.enable()` before the first use of CUDA")
