# SPDX-License-Identifier: Apache-2.0
"""One or two samples of a process as a page for people.

What is counted since the beginning becomes a speed between two samples; of the
first one there are none, and "-" says so. Knows no terminal and no socket.
"""

import dataclasses

from stratalloc._live import card, fitting, folding
from stratalloc._native.device_metrics import TIERS
from stratalloc._rendering import table as _table
from stratalloc._rendering.page import Page
from stratalloc._rendering.table import Row, Table, natural
from stratalloc.sizes import format_size

# What a key sorts by: the key's word, and which of a line's sizes.
ORDERS = {"t": ("total", "bytes"), "p": ("peak", "peak"),
          "c": ("churn", "churn")}
LAYERS = 15  # where no screen says how many
_FEW_LAYERS = 3  # that have room before what is above them
_WAYS = (("out", "out"), ("in", "in"), ("to disk", "to_disk"),
         ("from disk", "from_disk"))


@dataclasses.dataclass(frozen=True)
class _Line:
    """`count` layers in one line; None in `sizes`: not known."""

    name: str
    count: int
    sizes: dict
    categories: dict


@dataclasses.dataclass
class View:
    """What is known of the process: the last two samples, None for none, and
    what the driver said of each device's card."""

    now: dict | None = None
    before: dict | None = None
    cards: dict = dataclasses.field(default_factory=dict)
    order: str = "t"

    def add(self, sample, cards):
        """A newer one. Of another process of the same number there is nothing
        before it."""
        same = self.now is not None and (
            self.now["pid"] == sample["pid"]
            and sample["clock_ns"] > self.now["clock_ns"])
        self.before, self.now = self.now if same else None, sample
        self.cards = cards

    @property
    def seconds(self):
        """Between the two samples; None: there is one."""
        if self.before is None:
            return None
        return (self.now["clock_ns"] - self.before["clock_ns"]) / 1e9

    def page(self, width, lines=None, last=""):
        """A Page, `width` cells wide. lines: as high as it may be; last: its
        last line, for which and for some layers there is room first."""
        rest = fitting.wrapped(last, width) if last else []
        layers = sum(len(one["layers"]) for one in self.now["devices"])
        # A title, and how many are left out.
        few = min(layers, _FEW_LAYERS) + 2 if layers else 0
        room = None if lines is None else max(lines - len(rest) - few, 0)
        parts = fitting.chosen(
            [*self._head(width), *self._devices(width)], room)
        room = LAYERS
        if lines is not None:
            used = sum(map(fitting.height, parts)) + len(rest)
            room = max(lines - used - 2, 1)
        return Page([*parts, *self._layers(room, width), *rest], all=True)

    def strip(self, width):
        """The same in four lines, of all devices together."""
        now = self.now
        if now is None or not now["devices"]:
            said = ["no memory of a GPU yet", "", ""]
        else:
            said = [fitting.one_line(self._sums(), width),
                    fitting.one_line(self._strip_of_moves(), width),
                    "holds most: " + _table.joined([
                        f"{one.name} {format_size(one.sizes['bytes'])}"
                        for one in self._lines() if one.sizes["bytes"]][:20],
                        max(width - len("holds most: "), 1))]
        rule = ("── stratalloc" if now is None else
                f"── stratalloc top --pid {now['pid']} ")
        return [_table.cut(rule + "─" * (width - len(rule)), width),
                *(_table.cut(line, width) for line in said)]

    def _sums(self):
        """What all devices have together, the most important first."""
        def of(key):
            return sum(one[key] for one in self.now["devices"])

        limit = of("limit")
        share = f" ({of('allocated') / limit * 100:.0f} %)" if limit else ""
        return (f"{format_size(of('allocated'))} of {format_size(limit)}{share}",
                f"reserved {format_size(of('reserved'))}",
                f"on host {format_size(of('host_bytes'))}",
                f"on disk {format_size(of('disk_bytes'))}")

    def _strip_of_moves(self):
        devices = self.now["devices"]
        if self.seconds is None:
            return "moved -", "waited -"
        known = [one for one in devices if self._earlier(one)]

        def told(name, way):
            speed = sum(self._speed(one["moved"][way], self._earlier(one)[
                "moved"], way) for one in known)
            return f"{name} {format_size(int(speed))}/s"

        waited = sum(self._speed(one["stall_ns"], self._earlier(one),
                                 "stall_ns") for one in known)
        # The disk where there was any use of it: a line holds no more.
        ways = [told(name, way) for name, way in _WAYS if "disk" not in way
                or any(one["moved"][way] for one in devices)]
        return *ways[:2], f"waited {_threads(waited)}", *ways[2:]

    def _head(self, width):
        now = self.now
        process = f"process {now['pid']}: "
        yield fitting.Block(0, ([process + _table.cut(
            now["command"], max(width - len(process), 1))],))
        if now["simulated"]:
            yield _sentence(4, now["simulated"], width)
        yield _sentence(7, self._recorded(), width)
        if not now["devices"]:
            yield _sentence(
                1, "it has no memory of a GPU under this allocator yet", width)

    def _recorded(self):
        level = f"telemetry {self.now['level']}"
        events = self.now["events"]
        if events is None:
            return f"{level}: no events were recorded"
        speed = self._speed(events["recorded"], self.before
                            and self.before["events"], "recorded")
        speed = "-" if speed is None else f"{speed:.0f}"
        return f"{level}: {speed} events/s, {events['lost']} lost"

    def _devices(self, width):
        devices = self.now["devices"]
        if not devices:
            return
        if len(devices) > 1:
            table = fitting.narrowed(_several(self, devices), width,
                                     (0, 2, 3, 4, 5, 6, 1))
        else:
            table = fitting.narrowed(_tiers(devices[0], self.now), width,
                                     (0, 2, 1))
        first, *others = self._sums()
        # The label may have no room; that no GPU is used is said then as well.
        short = ", ".join([first, *["simulated"] * bool(self.now["simulated"])])
        many = f"{len(devices)} devices: " if len(devices) > 1 else ""
        moves = fitting.wrapped(", ".join(self._strip_of_moves()), width)
        shorter = [fitting.wrapped(text, width) for text in (
            many + ", ".join([short, *others]), many + short, short)]
        if len(devices) > 1:
            yield fitting.Block(1, ([table], shorter[0] + moves, *shorter))
        else:
            (one,) = devices
            yield _sentence(6, f"device {one['device']}: {one['name']}", width)
            yield fitting.Block(1, ([table], *shorter))
            yield _sentence(2, "moved: " + ", ".join(
                f"{name} {self.per_second(one, key)}" for name, key in _WAYS),
                width)
            yield _sentence(3, (
                f"waited: {self.waited(one)}; {one['stalls']} times, "
                f"{one['stall_ns'] / 1e9:.2f} thread-s in all; "
                f"out of memory {one['ooms']} times"), width)
        yield _sentence(5, card.line(
            [(one["device"], self.cards[one["device"]]) for one in devices],
            width), width)

    def waited(self, device):
        """Between the samples, summed over threads as waits ended."""
        ns = self._speed(device["stall_ns"], self._earlier(device), "stall_ns")
        return "-" if ns is None else _threads(ns)

    def per_second(self, device, *ways):
        earlier = self._earlier(device)
        speeds = [self._speed(device["moved"][way], earlier
                              and earlier["moved"], way) for way in ways]
        return "-" if None in speeds else f"{format_size(int(sum(speeds)))}/s"

    def _earlier(self, device):
        for one in self.before["devices"] if self.before else ():
            if one["device"] == device["device"]:
                return one
        return None

    def _speed(self, value, earlier, key):
        """Per second; None: nothing was there to compare it with."""
        if self.seconds is None or earlier is None:
            return None
        return max(value - earlier[key], 0) / self.seconds

    def _lines(self):
        """[_Line] of all devices, repeated layers as one, the largest first."""
        several = len(self.now["devices"]) > 1
        found = []
        for device in self.now["devices"]:
            earlier = {one["owner"]: one for one in
                       (self._earlier(device) or device)["layers"]}
            layers = sorted(device["layers"],
                            key=lambda one: natural(one["owner"]))
            for name, which in folding.folded([
                    (one["owner"], frozenset(one["categories"]))
                    for one in layers]):
                found.append(self._sum_of(
                    name + (f" (device {device['device']})" if several else ""),
                    [layers[at] for at in which], earlier))
        found.sort(key=lambda one: -one.sizes["bytes"])
        return found

    def _sum_of(self, name, layers, earlier):
        sizes = {key: _sum(one[key] for one in layers)
                 for key in ("bytes", *TIERS, "peak")}
        sizes["churn"] = _sum(self._churn(one, earlier.get(one["owner"]))
                              for one in layers)
        categories = {}
        for one in layers:
            for category, size in one["categories"].items():
                categories[category] = categories.get(category, 0) + size
        return _Line(name, len(layers), sizes, categories)

    def _churn(self, one, earlier):
        """Bytes of a layer that left and came back, per second; or None."""
        if earlier is None or None in (one["moved"], earlier["moved"]):
            return None
        speed = self._speed(one["moved"], earlier, "moved")
        return None if speed is None else int(speed)

    def _layers(self, room, width):
        word, key = ORDERS[self.order]
        rows = sorted(self._lines(), key=lambda one: -(one.sizes[key] or 0))
        if not rows:
            return
        tiers = [tier for tier in TIERS
                 if tier == "device" or any(one.sizes[tier] for one in rows)]
        titles = ["owner", "total", *tiers]
        if word != "total":
            titles.append(f"{word}/s" if word == "churn" else word)

        def row_of(one):
            cells = [format_size(one.sizes[name])
                     for name in ("bytes", *tiers)]
            if word == "peak" and one.count > 1 and one.sizes["peak"]:
                # Each had its most at a time of its own.
                cells.append(f"≤ {format_size(one.sizes['peak'])}")
            elif word != "total":
                cells.append(_size(one.sizes[key]))
            parts = sorted(one.categories.items(), key=lambda part: -part[1])
            return Row(one.name, tuple(cells), tuple(
                f"{category} {format_size(part)}" if len(parts) > 1
                else category for category, part in parts))

        left = sum(one.count for one in rows[room:])
        untold = sum(device["other_layers"]["count"]
                     for device in self.now["devices"])
        rest = f"and {left + untold} more" if left or untold else ""
        numbers = list(range(len(titles) - 1))
        if word != "total":
            numbers.insert(1, numbers.pop())  # what they are sorted by
        yield fitting.narrowed(
            Table(tuple(titles), list(map(row_of, rows[:room])), rest,
                  "by category"), width, numbers)


def _tiers(one, sample):
    """What is where, of how much."""
    rows = [("allocated", one["allocated"], one["limit"]),
            ("reserved", one["reserved"], one["limit"]),
            ("evicted to host", one["host_bytes"],
             (sample["host"] or {}).get("budget")),
            ("evicted to disk", one["disk_bytes"],
             (sample["disk"] or {}).get("budget"))]
    made = []
    for name, size, limit in rows:
        share = min(size / limit, 1.0) if limit else None
        made.append(Row(name, (
            format_size(size), "-" if limit is None else format_size(limit),
            "-" if share is None else f"{share * 100:.0f} %"), share=share))
    return Table(("", "now", "of", ""), made)


def _several(view, devices):
    rows = [Row(str(one["device"]), (
        format_size(one["allocated"]), format_size(one["reserved"]),
        format_size(one["limit"]),
        format_size(one["host_bytes"] + one["disk_bytes"]),
        view.per_second(one, "out", "in"), view.waited(one).partition(" ")[0],
        str(one["ooms"]))) for one in devices]
    return Table(("device", "allocated", "reserved", "limit", "evicted",
                  "moved", "waited s/s", "ooms"), rows)


def _threads(ns):
    """ns that threads waited in a second. A sum over threads, told of a wait
    when it ends: no share of the time."""
    return f"{ns / 1e9:.2f} thread-s/s"


def _sentence(rank, text, width):
    return fitting.Block(rank, (fitting.wrapped(text, width),))


def _size(size, unknown="-"):
    return unknown if size is None else format_size(size)


def _sum(sizes):
    """None: one of them is not known."""
    sizes = list(sizes)
    return None if None in sizes else sum(sizes)


def listed(found):
    """A Table of several processes: [(pid, path, sample)]."""
    rows = []
    for pid, _, sample in found:
        sums = [sum(one[key] for one in sample["devices"])
                for key in ("allocated", "reserved", "host_bytes",
                            "disk_bytes")]
        rows.append(Row(str(pid), tuple(map(format_size, sums)),
                        (sample["command"],)))
    return Table(("pid", "allocated", "reserved", "on host", "on disk"), rows,
                 notes="command")


def text(table, stream):
    """The lines of a table, as wide as the terminal of `stream`."""
    return "\n".join(_table.text(table, _table.terminal(stream)[0]))
