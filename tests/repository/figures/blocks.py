# SPDX-License-Identifier: Apache-2.0
"""What measurements say, as the text of a README; from JSON to Markdown."""

import math
import statistics
import textwrap
from collections.abc import Iterator

ALLOCATORS = ("native", "expandable", "stratalloc", "tiered")
NATIVES, OURS = ALLOCATORS[:2], ALLOCATORS[2:]
# Where the narrowest of the READMEs fold.
_COLUMNS = 80
# The goal of replays: our time over native's.
_REPLAY_GOAL = 0.5

_ON = "allocations, tiering on"
_OFF = "allocations, tiering off"
_CALLS = "allocations, tiering on, CUDA calls cost 300 ns"


def _geomean(values) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def _text(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _COLUMNS, break_on_hyphens=False)


def _mib(count: int) -> int:
    return round(count / 2**20)


def _four(values) -> str:
    return " / ".join(f"{value:.0f}" for value in values)


def _least(by: dict) -> int:
    return min(by[name]["reserved"] for name in NATIVES)


def _peaks(by: dict) -> Iterator[str]:
    """Peak reserved; ours in bold where it is above the smaller native."""
    for name in ALLOCATORS:
        peak = by[name]["reserved"]
        above = name in OURS and peak > _least(by)
        yield f"**{_mib(peak)}**" if above else str(_mib(peak))


def _later(by: dict, name: str) -> float:
    """An operation of a later run: processor's time and the card's."""
    return statistics.median(by[name]["ns"]) + by[name]["card_ns"]["later"]


def _of_native(by: dict, name: str) -> float:
    return _later(by, name) / _later(by, "native")


def _means(traces: dict) -> dict[str, float]:
    """Reserved / allocated at the peak of allocated, by allocator."""
    return {name: _geomean(
        by[name]["reserved_at_allocated"] / max(1, by[name]["allocated"])
        for by in traces.values()) for name in ALLOCATORS}


# Jobs of the first page's table: what it calls them.
_FIRST_PAGE = {"llama": "training", "generation": "inference"}


def first_page(measured: dict) -> Iterator[str]:
    """Peaks of one training and one inference job, and of all of them."""
    traces = measured["traces"]
    names = ("native", "expandable", "tiered")
    yield ("| recorded jobs on the simulated H200 | PyTorch | expandable "
           "segments | stratalloc |")
    yield "|---|---|---|---|"
    for trace, kind in _FIRST_PAGE.items():
        peaks = (traces[trace][name]["reserved"] / 2**30 for name in names)
        times = (_later(traces[trace], name) for name in names)
        yield f"| {kind} ({trace}): reserved, time of malloc or free | " + " | ".join(
            f"{peak:.2f} GiB, {ns:.0f} ns"
            for peak, ns in zip(peaks, times)) + " |"
    means = _means(traces)
    yield (f"| reserved / allocated at the peak, {len(traces)} jobs | "
           + " | ".join(f"{means[name]:.2f}" for name in names) + " |")
    above = [by["tiered"]["reserved"] / _least(by) - 1
             for by in traces.values() if by["tiered"]["reserved"] > _least(by)]
    yield ""
    yield (f"stratalloc reserves more than the better of the other two in "
           f"{len(above)} of {len(traces)} jobs"
           + (f", by {100 * max(above):.1f} % at most." if above else "."))


def replay(measured: dict) -> Iterator[str]:
    """Of `python -m tests.system.replay.table --json`."""
    traces = measured["traces"]
    means = _means(traces)
    yield from _text(
        f"Reserved / allocated at the peak of allocated, geometric mean of "
        f"{len(traces)}: native {means['native']:.4f}, expandable "
        f"{means['expandable']:.4f}, ours {means['stratalloc']:.4f} with "
        f"tiering off and {means['tiered']:.4f} with it on.")
    yield ""
    yield ("| trace | native | expandable | off | on | card, first | "
           "processor, later | card, later | on, off of native, later |")
    yield "|---|---|---|---|---|---|---|---|---|"
    every: dict[str, list] = {"first": [], "processor": [], "later": []}
    for trace, by in traces.items():
        times = {
            "first": [by[name]["card_ns"]["first"] for name in ALLOCATORS],
            "processor": [statistics.median(by[name]["ns"])
                          for name in ALLOCATORS],
            "later": [by[name]["card_ns"]["later"] for name in ALLOCATORS],
        }
        for key, values in times.items():
            every[key].append(values)
        yield (f"| {trace} | {' | '.join(_peaks(by))} | "
               f"{' | '.join(map(_four, times.values()))} | "
               f"{_of_native(by, 'tiered'):.2f}, "
               f"{_of_native(by, 'stratalloc'):.2f} |")
    # Half a nanosecond at least: one trace asks the card for nothing later.
    yield "| geomean | | | | | " + " | ".join(
        _four(_geomean(max(value, 0.5) for value in column)
              for column in zip(*rows))
        for rows in every.values()) + " | |"
    for name, tiering in (("tiered", "on"), ("stratalloc", "off")):
        met = [trace for trace, by in traces.items()
               if _of_native(by, name) <= _REPLAY_GOAL]
        first = [by[name]["card_ns"]["first"] / by["native"]["card_ns"]["first"]
                 for by in traces.values()]
        above = {trace: 100 * (by[name]["reserved"] / _least(by) - 1)
                 for trace, by in traces.items()
                 if by[name]["reserved"] > _least(by)}
        worst = max(above, key=above.__getitem__, default="")
        yield ""
        yield from _text(
            f"Tiering {tiering}: the goal of {_REPLAY_GOAL} is met on "
            f"{len(met)} of {len(traces)} traces"
            + (f" ({', '.join(met)})" if met else "")
            + f", a first run takes {min(first):.2f} to {max(first):.2f} of "
            "native's time. Peaks above the smaller native's: "
            + (f"{len(above)}, by at most {above[worst]:.1f} % ({worst})."
               if above else "none."))


def allocations(measured: dict) -> Iterator[str]:
    """Of `./dev bench --json FILE`: mallocs and frees against native's."""
    rows: dict[str, dict[str, dict]] = {}
    for row in measured["benchmarks"]:
        if row["group"] in (_ON, _OFF, _CALLS):
            rows.setdefault(row["name"], {})[row["group"]] = row
    yield ("| | tiering on | tiering off | native | ratio on | off | "
           "on, calls 300 ns | bar |")
    yield "|---|---|---|---|---|---|---|---|"
    for name, by in rows.items():
        on, off = by[_ON], by[_OFF]
        ratios = [f"**{row['ratio']:.2f}**" if row["pass"] is False
                  else f"{row['ratio']:.2f}"
                  for row in (on, off, by[_CALLS])]
        yield (f"| {name.removeprefix('malloc/free ')} | {on['value']:.0f} | "
               f"{off['value']:.0f} | {on['baseline']:.0f} | "
               f"{' | '.join(ratios)} | {on['goal'] or ''} |")
    yield ""
    yield from _text(_ran(measured))


def edges(measured: dict, begins: tuple[str, ...]) -> Iterator[str]:
    """Of the same: what a scope, a module's call, a guarded operator takes."""
    yield "| | ns | without | more | bar |"
    yield "|---|---|---|---|---|"
    for row in measured["benchmarks"]:
        if row["name"].startswith(begins):
            base = row["baseline"]
            yield (f"| {row['name']} | {row['value']:.0f} | "
                   + ("| | " if base is None else
                      f"{base:.0f} | {_more(row):.0f} | ")
                   + f"{row['goal'] or ''} |")
    yield ""
    yield from _text(_ran(measured))


def levels(measured: dict) -> Iterator[str]:
    """Of the same: what each level of telemetry takes of a malloc and a free.

    A pair is three events.
    """
    yield "| | ns | at off | more | an event | bar |"
    yield "|---|---|---|---|---|---|"
    for row in measured["benchmarks"]:
        if row["group"] != "levels of telemetry":
            continue
        base = row["baseline"]
        value = f"{row['value']:.0f}"
        if base is None:
            value = f"**{value}**" if row["pass"] is False else value
            yield (f"| {row['name']} | | | | {value} | "
                   f"{row['goal'] or ''} |")
        else:
            more = row["difference"]
            yield (f"| {row['name'].removeprefix('malloc/free ')} | {value} | "
                   f"{base:.0f} | {more:.0f} | {more / 3:.0f} | |")
    yield ""
    yield from _text(_ran(measured))


def _more(row: dict) -> float:
    return row.get("difference", row["value"] - row["baseline"])


def attribution(measured: dict) -> Iterator[str]:
    """Of the same: what accounting takes, and its share of a training step."""
    yield ("| | ns | without | more (95 %) | in a step | of it on meta | "
           "on the CPU | bar |")
    yield "|---|---|---|---|---|---|---|---|"
    for row in measured["benchmarks"]:
        if "shares" not in row:
            continue
        low, high = row["difference_range"]
        more = f"{row['difference']:.0f}"
        if row["pass"] is False and not row["goal"].endswith("%"):
            more = f"**{more}**"
        occurs = sorted(set(row["occurs"].values()))
        yield (f"| {row['name']} | {row['value']:.0f} | "
               f"{row['baseline']:.0f} | {more} ({low:.0f} to {high:.0f}) | "
               f"{', '.join(map(str, occurs))} | {_share(row, 'meta')} | "
               f"{_share(row, 'cpu')} | {row['goal'] or ''} |")
    yield ""
    yield from _text(_ran(measured))


def _share(row: dict, device: str) -> str:
    """Of the step; that of a whole step with its range, bold if missed."""
    if device not in row["shares"]:
        return ""
    share, low, high = (f"{100 * each:.1f}" for each in row["shares"][device])
    if row["goal"] is None or not row["goal"].endswith("%"):
        return f"{share} %"
    return (f"**{share} %**" if row["pass"] is False else f"{share} %") + (
        f" ({low} to {high})")


def _ran(measured: dict) -> str:
    machine = measured["machine"]
    return (f"`stratalloc bench`, {measured['rounds']} rounds, "
            f"{machine['device']} device, {machine['cores']} cores of "
            f"{machine['cpu']}, torch {machine['torch']}.")


def exports(measured: dict) -> Iterator[str]:
    """Of python_shim/stratalloc/telemetry/tests/million.py."""
    def cells(row, seconds, grew):
        return (f"{row[seconds]:.1f} | {_mib(row[grew])}" if seconds in row
                else " | ")

    def size(row):
        count = row.get("bytes", 0) / 1e6
        return "" if not count else f"{count:.2g}" if count < 1 else (
            f"{count:.0f}")

    yield "| | s | MiB | MB | check, s | MiB |"
    yield "|---|---|---|---|---|---|"
    for name, row in measured["rows"].items():
        yield (f"| {name} | {cells(row, 'seconds', 'grew')} | {size(row)} | "
               f"{cells(row, 'check_seconds', 'check_grew')} |")
    yield ""
    machine = measured["machine"]
    yield from _text(
        f"{measured['events']} events and {measured['marks']} marks, "
        f"{machine['cores']} cores of {machine['cpu']}, Python "
        f"{machine['python']}.")


def instructions(measured: dict) -> Iterator[str]:
    """Of tests/system/benchmarks/instructions.py."""
    counts = measured["instructions"]
    for begin, end in (("malloc", "free"), ("enter", "leave")):
        yield f"| {measured['compiler']} | {begin} | {end} |"
        yield "|---|---|---|"
        for key, count in counts.items():
            verb, _, name = key.partition(" ")
            if verb == begin:
                yield f"| `{name}` | {count} | {counts[f'{end} {name}']} |"
        if begin == "malloc":
            yield ""
