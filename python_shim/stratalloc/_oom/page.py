# SPDX-License-Identifier: Apache-2.0
"""report.md: a report as sections of Markdown, which is read as text, too.

Names are a program's own: what could end a table's cell or begin markup is
shown as text. Never fails on a report that was made or read.
"""

from stratalloc._oom.arithmetic import ROWS
from stratalloc._oom.verdict import KINDS
from stratalloc._rendering.table import printable
from stratalloc.sizes import format_size as size

_SHOWN = 15  # rows of a table


def text(report):
    """All of it; lines end as Markdown's."""
    sections = (_request, _verdict, _arithmetic, _holders, _evictable,
                _fragmentation, _changed, _suggestions, _pointers)
    lines = ["# Out of memory", ""]
    for number, section in enumerate(sections, 1):
        title, *rest = section(report)
        lines += [f"## {number}. {title}", "", *rest, ""]
    return "\n".join(lines)


def cell(name):
    """A name, inside of a table or not."""
    shown = printable(str(name))
    for letter in "\\`*[]<>|&":
        shown = shown.replace(letter, "\\" + letter)
    return shown


def _table(titles, rows, left_out=None):
    marks = ["---"] + ["---:"] * (len(titles) - 1)
    lines = [f"| {' | '.join(titles)} |", f"|{'|'.join(marks)}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return lines + (["", left_out] if left_out else [])


def _request(report):
    facts = report.facts
    what = (f"`{cell(report.operator)}`, which needs "
            f"{size(report.requested)} at once" if report.operator else
            f"{size(report.requested)}, a block of {size(report.rounded)}")
    yield "The request"
    yield from [f"- asked for: {what}",
                f"- on: device {report.device:d}, stream {facts['stream']:#x}",
                f"- by: {cell(report.owner)} ({cell(report.category)}, "
                f"{cell(facts['lifetime'])})",
                "- at: " + (cell(report.site) if report.site else
                            "no line of user code: none runs on this thread")]


def _verdict(report):
    yield f"Verdict: {KINDS[report.verdict.kind]}"
    yield cell(report.verdict.sentence)


def _arithmetic(report):
    total = sum(report.arithmetic.values())
    yield "The card's memory"
    yield from _table(
        ("what", "bytes", "for people"),
        [(ROWS[key], f"{held:d}", size(held))
         for key, held in report.arithmetic.items() if held]
        + [("capacity", str(total), size(total))])


def _holders(report):
    facts = report.facts
    rows = [row for row in facts["holders"] if row["device"]]
    rest = rows[_SHOWN:]
    yield "Who holds it"
    yield from _table(
        ("owner", "category", "on the device", "on host and disk"),
        [(cell(row["owner"]), cell(row["category"]), size(row["device"]),
          size(row["host"] + row["disk"])) for row in rows[:_SHOWN]],
        _and_more(rest, "device"))
    if facts["tensors"]:
        yield from ["", *_table(
            ("tensor", "bytes"),
            [(cell(one["name"]), size(one["bytes"]))
             for one in facts["tensors"][:_SHOWN]],
            _and_more(facts["tensors"][_SHOWN:], "bytes"))]


def _and_more(rest, key):
    if not rest:
        return None
    return (f"and {len(rest)} more, {size(sum(row[key] for row in rest))} "
            "(report.json has them)")


def _evictable(report):
    facts = report.facts
    yield "What might have left the device, and why it did not"
    if facts["why_no_tiering"]:
        yield ("Nothing leaves this device: "
               f"{cell(facts['why_no_tiering'])}.")
        yield ""
    yield from _table(("on the device because", "bytes"),
                      [(cell(why), size(held)) for why, held in sorted(
                          facts["stays"].items(), key=lambda item: -item[1])])
    said = facts["explanation"]
    if said and "room_below" in said and not facts["why_no_tiering"]:
        yield ""
        yield (f"{size(said['may_leave'])} might leave still, in whole handles "
               "with what is free in them, and the host and the disk have room "
               f"for {size(said['room_below'])} more.")
    if facts["parts"]["capturing"]:
        yield "A CUDA graph is being captured: nothing leaves meanwhile."
    for row in facts["pinned"][:_SHOWN]:
        yield (f"- {size(row['bytes'])} of {cell(row['owner'])}: "
               f"{cell(row['reason'])}")


def _fragmentation(report):
    facts = report.facts
    held, holes = facts["parts"]["held"], facts["holes"]
    yield "Fragmentation"
    if not holes:
        yield "No handle has free bytes beside live blocks."
        return
    left = facts["holes_left_out"]
    more = max(0, len(holes) - _SHOWN) + left["count"]
    free = left["free"] + sum(hole["free"] for hole in holes[_SHOWN:])
    packed = _packed(holes)
    yield (f"{size(held['stranded'])} are free beside live blocks, in handles "
           "that these keep. "
           + (f"Side by side the blocks of the {len(holes)} largest holes "
              f"would need {size(packed)} less." if packed else
              "Side by side these blocks would need as many handles."))
    yield ""
    yield from _table(
        ("kept by", "category", "free", "of", "its block"),
        [(cell(hole["oldest"]["owner"]), cell(hole["oldest"]["category"]),
          size(hole["free"]), size(hole["bytes"]),
          size(hole["oldest"]["bytes"])) for hole in holes[:_SHOWN]],
        f"and {more} more holes, {size(free)} free" if more else None)


def _packed(holes):
    """Whole handles that the blocks of these would not need, side by side; of
    pools that share, by stream and size of handle."""
    groups = {}
    for hole in holes:
        if hole["private_pool"]:
            continue
        key = (hole["stream"], hole["lifetime"], hole["bytes"])
        groups.setdefault(key, []).append(hole["bytes"] - hole["free"])
    return sum((len(live) - -(-sum(live) // handle)) * handle
               for (_, _, handle), live in groups.items())


def _changed(report):
    changed = report.facts["changed"]
    yield "What changed since the last mark"
    if changed is None:
        yield ("There is no mark(): nothing to compare with. Where events were "
               "recorded, report.html says who holds more with every step.")
        return
    if not changed["rows"]:
        yield f"Nothing since {cell(changed['mark'])}."
        return
    rows = changed["rows"]
    yield f"Since {cell(changed['mark'])}, on all tiers:"
    yield ""
    yield from _table(
        ("owner", "category", "bytes"),
        [(cell(row["owner"]), cell(row["category"]), _signed(row["bytes"]))
         for row in rows[:_SHOWN]],
        f"and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else None)


def _signed(held):
    return ("-" if held < 0 else "+") + size(abs(held))


def _suggestions(report):
    yield "What would help"
    if not report.suggestions:
        yield ("Nothing was lacking when this was tried: see the verdict."
               if report.verdict.kind == "came_free" else
               "Nothing that was tried would have served it.")
    else:
        yield ("Each alone, and tried on a copy of the device's blocks; the "
               "first gives up least.")
        yield ""
        for number, one in enumerate(report.suggestions, 1):
            yield f"{number}. {cell(one.text)}"
    yield from _growing(report)


def _growing(report):
    """What more memory would only put off: who took more than was lacking."""
    changed = report.facts["changed"] or {"rows": ()}
    grown = [row for row in changed["rows"]
             if row["bytes"] > max(report.verdict.bytes, 0)]
    if grown:
        row = grown[0]
        yield ""
        yield (f"Since {cell(changed['mark'])} {cell(row['owner'])} "
               f"({row['category']}) holds {size(row['bytes'])} more, on all "
               "tiers: if it goes on growing, more memory only puts off the "
               "next refusal.")


def _pointers(report):
    yield "Files"
    if report.bundle is None:
        yield ("None was written: the setting oom_dir names a directory for "
               "them.")
        return
    yield ("manifest.json says what is here and what was left out; "
           "report.json has all of this for programs; snapshot.pickle opens in "
           "https://docs.pytorch.org/memory_viz. Where events were recorded, "
           "report.html shows them in a browser, and run.strata is read by "
           "`stratalloc summary`, `peak`, `leaks` and `convert`.")
