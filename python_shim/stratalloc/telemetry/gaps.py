# SPDX-License-Identifier: Apache-2.0
"""Gaps of a run: what its program did that is not in it.

The only place that decides whether sums and peaks are those of the program.
`exact` of every answer, the sentences beside it and fit()'s "not known" follow
from it. Readers of files set the facts (model.Run, model.Device).

    unrecorded   the device has no event at all: its peak is not known
    overwritten  torch's ring was full, and older events were overwritten
    before       blocks or segments are older than the first event
    dropped      events of our own recording were lost, or not kept
    unknown      events of kinds that this stratalloc does not know
    unmatched    blocks whose end is missing, or whose events contradict others
    torn         the process was killed while it was recorded
    converted    the file was made of a recording that had gaps
"""

import dataclasses

from stratalloc._rendering.table import counted
from stratalloc.sizes import format_size
from stratalloc.telemetry import model, replay

_PART = "the peak is of the recorded part"
_NAMED = 3  # unknown actions that are named


@dataclasses.dataclass(frozen=True)
class Gap:
    """`text`: for people. `reserved`: of what is older than the recording, the
    most that was reserved by then; None: not known."""

    kind: str
    text: str
    reserved: int | None = None


def gaps(run, index, walked=None):
    """(Gap, ...) of one device; none: its sums are those of the program.

    Args:
      walked: its Replay, where the caller has it.
    """
    device = run.device(index) or model.Device(index, start=None)
    if device.unrecorded:
        return (Gap("unrecorded", "no event was recorded, so the peak is not "
                    "known: call torch.cuda.memory._record_memory_history() "
                    "before the first allocation"), *_of_run(run))
    found = [*_overwritten(device), *_before(run, device, walked)]
    if device.unmatched:
        found.append(Gap("unmatched", (
            f"{counted(device.unmatched, 'block')} without a matching end: "
            f"events are missing; {_PART}")))
    return (*found, *_of_run(run))


def exact(run, index, walked=None):
    """Whether sums and peaks of a device are those of the program."""
    device = run.device(index)
    anchored = device and (device.start is not None or device.end is not None)
    return bool(anchored) and not gaps(run, index, walked)


def missing(run, lost_only=False):
    """The gaps of all devices in one sentence; "" where there is none.

    Args:
      lost_only: without what is older than the recording.
    """
    cards = [one for one in replay.devices(run) if not (
        run.device(one) and run.device(one).tier)]
    found = {}
    for index in cards:
        for gap in gaps(run, index):
            if not (lost_only and gap.kind == "before"):
                found.setdefault(gap.text, []).append(index)
    if not cards:
        found = {gap.text: [] for gap in _of_run(run)}
    said = [text if len(where) == len(cards) else
            f"device {', '.join(map(str, where))}: {text}"
            for text, where in found.items()]
    return "; ".join(said)


def asides(run):
    """Sentences of what is in the file and in no answer; no gaps."""
    if run.host_segments:
        yield (f"{counted(run.host_segments, 'segment')} of pinned host memory, "
               f"{format_size(run.host_bytes)}, are in the file and in no "
               "answer")


def note(run, index):
    """Sets `older` and `unmatched` of a device whose start is not recorded."""
    device, walked = run.device(index), replay.Replay(run, index)
    held = walked.live(replay.BEFORE, "done")
    device.older = model.Older(len(held), int(walked.rows["size"][held].sum()),
                               max(0, walked.reserved.base))
    there = {block.address for block in replay.blocks(device.end or ())}
    lasting = walked.rows[walked.rows["done"] == len(run.events)]
    device.unmatched = len(walked.faults) + sum(
        address not in there for address in lasting["address"].tolist())


def _overwritten(device):
    if device.ring:
        yield Gap("overwritten", (
            f"events before the first of {device.ring} were overwritten, since "
            f"torch's ring was full: record with a larger max_entries; {_PART}"))


def _before(run, device, walked):
    """What is older than the first event."""
    if device.start is None:
        older = device.older
        if device.ring or not older or not (older.blocks or older.reserved):
            return
        held = (f"{format_size(older.bytes)} in "
                f"{counted(older.blocks, 'block')}" if older.blocks else
                f"{format_size(older.reserved)} of reserved memory")
        yield Gap("before", (
            f"{held} {'are' if older.blocks > 1 else 'is'} older than the first "
            "event: the recording began late, or older events were overwritten, "
            f"so record from the start with a larger max_entries; {_PART}"))
    elif device.start:
        most = [device.before.get(f"{name}_bytes.all.peak")
                for name in ("allocated", "reserved")]
        if None in most:
            yield Gap("before", (
                "the recording began when memory was reserved already, and what "
                f"was there before is not known; {_PART}"))
        elif _rose(run, device, most, walked):
            yield Gap("before", (
                "before the recording began up to "
                f"{format_size(most[0])} was allocated and "
                f"{format_size(most[1])} reserved; {_PART}"), most[1])


def _rose(run, device, most, walked):
    """Whether more was there before the recording than in it."""
    now = [sum(block.size for block in replay.blocks(device.start)
               if block.state == model.ACTIVE and not block.tier),
           sum(one.size for one in device.start)]
    if all(peak <= held for peak, held in zip(most, now)):
        return False
    walked = walked or replay.Replay(run, device.index)
    return (most[0] > walked.allocated.most()
            or most[1] > walked.reserved.most())


def _of_run(run):
    if run.dropped:
        yield Gap("dropped", f"{_dropped(run)}; {_PART}")
    if run.ignored:
        names = sorted(run.ignored)
        yield Gap("unknown", (
            f"{counted(sum(run.ignored.values()), 'event')} of unknown kinds "
            f"({', '.join(names[:_NAMED])}{', …' if names[_NAMED:] else ''}) "
            f"are left out; {_PART}"))
    if run.torn:
        yield Gap("torn", "the program did not end by itself: what came after "
                  f"is not recorded, and {_PART}")
    if run.converted:
        yield Gap("converted", run.converted)


def _dropped(run):
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
