# SPDX-License-Identifier: Apache-2.0
"""verdict(): what a run comes to, in one sentence that is true of it.

A sentence tells what was recorded and never why, where that was not. What the
recording lacks is said in it. The kinds, the gravest first; a run may be of
several, and is told by its gravest:

    out_of_memory  a request was refused
    disk_bound     a thread waited for memory for a tenth of the time or more,
    bus_bound      and most moves were from or to disk, or were not
    growing        somebody held more in each quarter of the steps
    fragmented     a quarter of what was reserved, and more, was stranded
    near_edge      nine tenths of the card, or of what gpu_limit allows of it,
                   were allocated, and more
    not_known      the recording has gaps (gaps.py), and none of the above is
                   in what it tells
    moving         memory left the device, and hardly anybody waited
    fits           none of these
    peaked         as that, where neither is known: no share can be told
    nothing        no memory was allocated
"""

import dataclasses

import numpy as np

from stratalloc._native.device_metrics import TIERS
from stratalloc._rendering.table import counted, printable, refused
from stratalloc.sizes import format_size
from stratalloc.telemetry import gaps, model, replay
from stratalloc.telemetry.analysis import owners
from stratalloc.telemetry.analysis.more_memory import saved
from stratalloc.telemetry.analysis.traffic import traffic
from stratalloc.telemetry.exports.notes import missing
from stratalloc.telemetry.model import Kind

KINDS = ("out_of_memory", "disk_bound", "bus_bound", "growing", "fragmented",
         "near_edge", "not_known", "moving", "fits", "peaked", "nothing")
_WAITED = .1  # of the time
_STRANDED = .25  # of what is reserved
_OF_CARD = .5  # or of its limit, that is reserved, for holes in it to matter
_FULL = .9  # of the card, or of its limit
_LONGEST = 120  # characters of a name


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`sentence`: for people, with units. `numbers`: what stands in it and
    more, ints in bytes or ns, or counts. `others`: (kind, sentence) of the
    less grave that hold as well; with several cards, of all of them.
    """

    kind: str
    sentence: str
    numbers: dict
    others: tuple = ()

    @classmethod
    def of(cls, told):
        """Of a to_dict(), as JSON gives it back."""
        return cls(**{**told, "others": tuple(map(tuple, told["others"]))})

    @property
    def line(self):
        """The sentence, and those of other cards that are of its kind."""
        return "; ".join([self.sentence, *(
            said for kind, said in self.others if kind == self.kind)])

    def to_dict(self):
        return {**vars(self), "numbers": dict(self.numbers),
                "others": [list(one) for one in self.others]}


def verdict(run, device=None, estimate=True, leaks=owners.leaks):
    """The Verdict of a run.

    Args:
      device: None: the gravest of its cards.
      estimate: whether what more memory would save is worked out, which takes
        up to about a second.
      leaks: what is asked for a device's Leaks; of a caller who has them.

    Raises:
      ValueError: the run has no such device.
    """
    there = replay.devices(run)
    if device is not None and device not in there:
        raise ValueError(f"stratalloc: the run has no device {device!r}; it "
                         f"has {there}")
    cards = [one for one in there if not (
        run.device(one) and run.device(one).tier)]
    found = []
    for one in cards if device is None else [device]:
        name = f"device {one}: " if len(cards) > 1 else ""
        found += [(kind, name + said, numbers) for kind, said, numbers
                  in _Judge(run, one, estimate, leaks).findings()]
    found = found or [("nothing", _NOTHING, {})]
    found.sort(key=lambda one: KINDS.index(one[0]))
    kind, said, numbers = found[0]
    return Verdict(kind, said + _lacks(run), numbers,
                   tuple((kind, said) for kind, said, _ in found[1:]))


_NOTHING = "no memory of a device was allocated while this was recorded"


def _lacks(run):
    return f"; {missing(run)}" if missing(run) else ""


class _Judge:
    """One device. `findings`: (kind, sentence, numbers), the gravest first."""

    def __init__(self, run, index, estimate, leaks):
        self.run, self._estimate, self._leaks = run, estimate, leaks
        self.walked = replay.Replay(run, index)
        self.exact = gaps.exact(run, index, self.walked)
        self.traffic = traffic(run, index)
        events = run.events
        self.ooms = np.flatnonzero((events["kind"] == Kind.OOM)
                                   & (events["device"] == index))
        self.capacity = self.walked.device.capacity
        self.limit = _limit(run, self.capacity)
        self.allowed = self.limit or self.capacity
        self.allocated = self.walked.allocated.most()
        self.reserved = self.walked.reserved.most()
        moved = self.traffic
        self.numbers = {
            "device": index, "capacity": self.capacity,
            "allowed": self.allowed,
            "peak_allocated": self.allocated, "peak_reserved": self.reserved,
            "duration_ns": int(run.duration), "ooms": len(self.ooms),
            "left_device": moved.left, "came_back": moved.returned,
            "stalls": moved.stalls, "stalled_ns": moved.stalled,
            "late": moved.late, "dropped_events": int(run.dropped)}

    def findings(self):
        found = []
        for judged in (self._out_of_memory, self._moves, self._growing,
                       self._fragmented, self._edge):
            one = judged()
            if one:
                kind, said, more = one
                found.append((kind, said, {**self.numbers, **more}))
        if not found:
            kind, said = self._quiet()
            found.append((kind, said, self.numbers))
        return found

    def _quiet(self):
        if self.walked.device.unrecorded:
            return "not_known", (
                f"the peak is not known: {format_size(self.allocated)} was "
                f"allocated and {format_size(self.reserved)} reserved when the "
                "snapshot was written")
        if not self.exact:
            return "not_known", (
                "the peak is not known: at most "
                f"{format_size(self.allocated)} was allocated and "
                f"{format_size(self.reserved)} reserved in the recorded part"
                + self._before())
        if not self.allocated:
            return "nothing", _NOTHING
        if self.walked.device.tier:
            return "peaked", (
                f"at most {format_size(self.allocated)} of the "
                f"{TIERS[self.walked.device.tier]}'s memory was allocated"
                + self._before())
        if not self.allowed:
            parts = self._holes()
            return "peaked", (
                f"at most {format_size(self.allocated)} was allocated and "
                f"{format_size(self.reserved)} reserved, on a card whose size "
                "was not recorded"
                + (f"; {format_size(parts.stranded)} of that was free and "
                   "could not be given back" if parts else "")
                + self._before())
        return "fits", (
            f"fits with room: at most {format_size(self.allocated)} of "
            f"{self._whole()} was allocated "
            f"({share(self.allocated, self.allowed)}), "
            f"{format_size(self.reserved)} reserved" + self._before())

    def _whole(self):
        """What there was to have."""
        if not self.limit:
            return f"the card's {format_size(self.capacity)}"
        return (f"the {format_size(self.limit)} that gpu_limit allows"
                + (f" of the card's {format_size(self.capacity)}"
                   if self.capacity else ""))

    def _before(self):
        return "" if self.walked.anchored else (
            "; what was there before the recording is not in it")

    def _out_of_memory(self):
        if not len(self.ooms):
            return None
        at = int(self.ooms[0])
        event = self.run.events[at]
        asked, scope = int(event["bytes"]), int(event["scope"])
        count = len(self.ooms)
        said = (f"out of memory: {refused(count)}, "
                f"{'' if count == 1 else 'the first '}at "
                f"{int(event['time']) / 1e9:.3f} s: {format_size(asked)}"
                + (f" for {named(self.run.scopes[scope])}" if scope else ""))
        numbers = {"asked": asked, "oom_time_ns": int(event["time"])}
        if self.run.dropped or not self.walked.anchored:
            return "out_of_memory", said, numbers
        reserved = self.walked.reserved.at(at)
        more = int(event["address"])  # that the card has
        if self.limit:
            more = max(0, min(more, self.limit - reserved))
        free = reserved - self.walked.active.at(at) + more
        hole = max((block.size for one in replay.segments_at(self.walked, at)
                    for block in one.blocks if block.state == model.FREE),
                   default=0)
        numbers.update(free=free, largest_hole=hole, missing=max(
            0, asked - free))
        said += (f" while {format_size(self.walked.allocated.at(at))} was "
                 f"allocated and {format_size(max(free, 0))} free"
                 + (f" of {self._whole()}" if self.limit else ""))
        if asked > free:
            return "out_of_memory", (
                f"{said}, {format_size(asked - free)} less than that"), numbers
        return "out_of_memory", (
            f"{said}, {format_size(more)} of that not reserved; the largest hole in what was reserved had {format_size(hole)}"
        ), numbers

    def _moves(self):
        moved = self.traffic
        if not moved.moved and not moved.stalls:
            return None
        kind, said = "moving", "memory moved"
        if moved.stalled >= _WAITED * self.run.duration > 0:
            kind = ("disk_bound" if moved.disk > moved.bus else "bus_bound")
            said = kind.replace("_", "-")
        said += (f": {format_size(moved.left)} left the device and "
                 f"{format_size(moved.returned)} came back")
        speed = moved.rate(1, 0) if (1, 0) in moved.moved else 0.
        if speed and kind != "disk_bound":
            said += f", from the host at {format_size(int(speed))}/s"
        if not moved.stalls:
            said += "; no thread waited for memory"
        elif self.run.duration:
            said += (f"; a thread waited for memory in "
                     f"{share(moved.stalled, self.run.duration)} of "
                     f"{self.run.duration / 1e9:.3g} s")
        if moved.late:
            said += (f"; a stream waited for a late prefetch "
                     f"{counted(moved.late, 'time')}")
        numbers = {"bus_ns": moved.bus, "disk_ns": moved.disk,
                   "bytes_per_second": int(speed)}
        less = self._estimate and saved(self.run, self.walked,
                                        moved.left + moved.returned)
        if less:
            said += (f"; by an estimate {format_size(less.more)} more memory "
                     f"would save {share(less.share, 1)} of the moves")
            numbers.update(more=less.more, saved=int(
                less.share * (moved.left + moved.returned)))
        return kind, said, numbers

    def _growing(self):
        found = self._leaks(self.run, self.walked.index)
        if not found.rows:
            return None
        most = found.rows[0]
        count = len(found.rows)
        return "growing", (
            f"memory kept growing: {named(most.name)} ({most.category}) by about "
            f"{format_size(most.per_step)} a step"
            + (f", and {counted(count - 1, 'other')}" if count > 1 else "")
            + f" ({named(found.at)})"), {
                "growing": count, "per_step": most.per_step}

    def _holes(self):
        """The parts of what was reserved at most, if much was stranded."""
        parts = self.walked.reserved_parts(self.walked.reserved_peak)
        much = parts.stranded and parts.stranded >= _STRANDED * parts.total
        return parts if much and self.walked.anchored else None

    def _fragmented(self):
        parts = self._holes()
        if (not parts or not self.allowed
                or self.reserved < _OF_CARD * self.allowed):
            return None
        return "fragmented", (
            f"fragmented: of the {format_size(parts.total)} that was reserved "
            f"at most, {format_size(parts.stranded)} was free and could not be "
            f"given back, since something lived beside it"), {
                "stranded": parts.stranded, "releasable": parts.releasable}

    def _edge(self):
        if (not self.allowed or self.traffic.moved or len(self.ooms)
                or self.allocated < _FULL * self.allowed):
            return None
        return "near_edge", (
            f"near the edge: {format_size(self.allocated)} of {self._whole()} "
            f"was allocated at the {'peak' if self.exact else 'recorded peak'} "
            f"({share(self.allocated, self.allowed)})" + self._before()), {}


def _limit(run, capacity):
    """gpu_limit of the recording, which is each card's, where it is less than
    the card; 0 without one. No recording has the memory fraction."""
    limit = run.settings.get("gpu_limit")
    known = type(limit) is int and 0 < limit < (capacity or limit + 1)
    return limit if known else 0


def named(name):
    """A name in a sentence: on one line, and not longer than that."""
    name = printable(name)
    return name if len(name) <= _LONGEST else name[:_LONGEST] + "…"


def share(part, whole):
    """A share for people."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    return "less than 1 %" if 0 < percent < 1 else f"{percent:.0f} %"
