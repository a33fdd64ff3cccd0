# SPDX-License-Identifier: Apache-2.0
"""Results: a mapping, a list of rows, and a text."""

import dataclasses
import json
import re
import sys
import types
from collections.abc import Mapping

import pytest

from bazel import programs
from made_results import (  # noqa: F401
    ALL, MIB, explanation, fragmentation, growth, holders, leaks, mark,
    of_80_columns, report, residency, stats)
from stratalloc._reports.diff import Change, Growth
from stratalloc._reports.holders import Holder, Holders
from stratalloc._reports import leaks as _leaks
from stratalloc._reports.stats import Stats
from stratalloc._rendering import table as _table


def integers(value):
    """No number in it is anything else."""
    if isinstance(value, dict):
        return all(map(integers, value.values()))
    if isinstance(value, list):
        return all(map(integers, value))
    return value is None or isinstance(value, (int, str))


@pytest.mark.parametrize("make", ALL)
def test_every_result_is_a_mapping(make):
    found = make()
    plain = found.to_dict()
    assert type(plain) is dict and integers(plain)
    assert isinstance(found, Mapping) and dict(found) == plain == found
    assert json.loads(json.dumps(plain)) == plain
    assert list(found) == list(plain) and len(found) == len(plain)
    for key in plain:
        assert found[key] == plain[key] and key in found
        if key != "fits" or make is explanation:
            got = getattr(found, key)
            assert (got == plain[key] or key in ("rows", "holes")), key
    with pytest.raises(KeyError):
        found["what nobody has"]
    with pytest.raises(AttributeError):
        found.what_nobody_has
    assert re.fullmatch(r"<stratalloc\.\w+ .*>", repr(found))


@pytest.mark.parametrize("make", [holders, growth, leaks, mark])
def test_rows_add_up_to_the_total(make):
    found = make().to_dict()
    assert set(found) == {"total", "at", "device", "rows"}
    assert sum(row["bytes"] for row in found["rows"]) == found["total"] != 0
    for row in found["rows"]:
        assert list(row)[:4] == ["name", "category", "bytes", "count"]
        assert "tier" in row


def test_rows_of_a_mark_are_of_all_tiers():
    found = mark()
    assert [(row.name, row.bytes, row.count, row.tier) for row in found.rows
            ] == [("Head", 3 * MIB, 2, "all"), ("Net.0", 2 * MIB, 1, "all")]
    assert found.at == found.name == "epoch 2" and found.total == 5 * MIB


def test_stats_are_the_dict_that_they_were():
    found = stats()
    assert isinstance(found, dict) and json.loads(json.dumps(found)) == found
    assert found.live == found["live"] and found.get("nothing") is None
    empty = Stats({}, (0, 0))
    assert empty == {} and not empty and "not initialised" in str(empty)
    with pytest.raises(AttributeError, match="'life'; it has device, gpu_limit"):
        found.life


class _Frame:
    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns


@pytest.mark.parametrize("make, columns", [
    (holders, ["name", "category", "bytes", "count", "tier"]),
    (growth, ["name", "category", "bytes", "count", "tier"]),
    (leaks, ["name", "category", "bytes", "count", "per_step", "tier"]),
    (fragmentation, ["address", "bytes", "free", "blocks", "owner", "category",
                     "block_bytes", "age", "lifetime"]),
    (explanation, ["address", "bytes", "owner", "category"]),
    (mark, ["name", "category", "bytes", "count", "tier"]),
    (report, ["owner", "category", "live", "peak", "at_peak", "allocated",
              "freed", "blocks", "blocks_allocated", "blocks_freed", "device",
              "host", "disk", "evicted", "restored", "to_disk", "from_disk",
              "stalls", "stall_ns"])])
def test_to_pandas(make, columns, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas",
                        types.SimpleNamespace(DataFrame=_Frame))
    found = make()
    frame = found.to_pandas()
    assert frame.columns == columns
    rows = next(found[key] for key in ("rows", "holes", "frees", "layers")
                if key in found)
    assert frame.rows == rows and rows
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas") as raised:
        found.to_pandas()
    assert "to_dict()" in str(raised.value)


@pytest.mark.parametrize("make, lines", [
    (residency, [("device", 3 * MIB), ("host", 512), ("disk", 0)]),
    (stats, [("device", 0), ("gpu_limit", 1 << 30), ("live", 5 * MIB),
             ("stays.activations", MIB), ("stays.evictable", 4 * MIB),
             ("allocated.current", 5 * MIB)])])
def test_to_pandas_of_a_result_without_rows_has_its_values(
        make, lines, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas",
                        types.SimpleNamespace(DataFrame=_Frame))
    frame = make().to_pandas()
    assert frame.columns == ["name", "value"]
    assert frame.rows[:len(lines)] == [
        {"name": name, "value": value} for name, value in lines]


@pytest.mark.parametrize("make", ALL)
def test_text_of_every_result_takes_depth_and_all(make):
    found = make()
    assert str(found) == found.text()
    assert found.text(depth=0) and "(all=True)" not in found.text(all=True)
    with pytest.raises(ValueError, match="no number of levels"):
        found.text(depth=-1)


# As they are, byte for byte; a change of these is one that users see.
_TEXTS = {holders: """\
device 0 now            bytes     device   host  by category
total               35.01 MiB  32.01 MiB  3 MiB  parameter 19.01 MiB, …
  Net               35.01 MiB  32.01 MiB  3 MiB  parameter 19.01 MiB, …
    layers.0–3 × 4  32.01 MiB  32.01 MiB    0 B  parameter 16.01 MiB, …
      up               32 MiB     32 MiB    0 B  gradient 16 MiB, …
      norm              8 KiB      8 KiB    0 B  parameter 8 KiB
    head                3 MiB        0 B  3 MiB  parameter 3 MiB
  [red]x[/red]?<b>      512 B      512 B    0 B  unknown 512 B""",
          growth: """\
+2 MiB from a to b on device 1
        bytes  blocks  by category
total  +2 MiB      +2  activation +2 MiB
  Net  +2 MiB      +2  activation +2 MiB
    0  +3 MiB      +3  activation +3 MiB
    1  -1 MiB      -1  activation -1 MiB""",
          leaks: """\
the last 12 steps  per step  in 6 steps  blocks  by category
total                 1 MiB       6 MiB       6  activation 1 MiB
  Net.cache           1 MiB       6 MiB       6  activation 1 MiB""",
          fragmentation: """\
10 MiB reserved on device 0
  allocated          4 MiB  in use
    of it rounding   512 B  nobody asked for it
  pending              0 B  freed, other streams still use it
  stranded           2 MiB  free, in handles that something keeps
    of it separated  1 MiB  lifetime classes have handles of their own
  releasable         4 MiB  free for every request
  in private pools     0 B  free, for graphs and MemPools alone

holes are kept by       free     of  its block  it is
Net.0              170.7 KiB  2 MiB      1 KiB  activation, age 7 operators
""",
          explanation: """\
3 MiB: refused; 1 MiB are missing even with everything evicted that may leave
raise gpu_limit by 1 MiB
it helps if these end  bytes
Net                    512 B  buffer
Net                    512 B  buffer
Net                    512 B  buffer
Net                    512 B  buffer
Net                    512 B  buffer
and 1 more, 512 B; text(all=True) has them""",
          stats: """\
stratalloc, device 0, tiering on
                     now     peak   limit
allocated          5 MiB  400 MiB   1 GiB
reserved           5 MiB  400 MiB   1 GiB
evicted to host    2 MiB        -       -
evicted to disk      0 B        -     0 B
live, all tiers    5 MiB        -       -
host memory used   3 MiB    7 MiB  64 MiB
  pinned for it   11 MiB   13 MiB  64 MiB
moved: 0 B out, 0 B in, 0 B to disk, 0 B from disk
operators waited 2 times, 1.5 ms
on the device: 4 MiB evictable, 1 MiB activations""",
          mark: """\
device 0 at epoch 2  bytes  blocks  by category
total                5 MiB       3  buffer 3 MiB, parameter 2 MiB
  Head               3 MiB       2  buffer 3 MiB
  Net.0              2 MiB       1  parameter 2 MiB""",
          residency: """\
        bytes
device  3 MiB
host    512 B
disk      0 B"""}
_TEXTS[report] = _TEXTS[stats] + """

device 0 now  bytes  device   host  by category
total         5 MiB   3 MiB  2 MiB  parameter 5 MiB
  Net.0       5 MiB   3 MiB  2 MiB  parameter 5 MiB

device 0 at its peak  bytes  by category
total                 4 MiB  parameter 4 MiB
  Net.0               4 MiB  parameter 4 MiB"""


@pytest.mark.parametrize("make", ALL)
def test_as_text(make):
    text = str(make())
    assert text.startswith(_TEXTS[make]), text
    assert text == _TEXTS[make] or make is fragmentation
    assert text == make().text()


def test_all_and_depth():
    assert str(holders()) == holders().text(depth=9)
    assert len(holders().text(depth=1).splitlines()) == 4
    assert str(fragmentation()).endswith(
        "and 2 smaller holes, 341.3 KiB free; text(all=True) has them")
    assert "Net.11" in fragmentation().text(all=True)
    assert len(explanation(40).text(all=True).splitlines()) == 43
    rows = [Holder(f"r{i:02}", "buffer", 1 + i, 1, "device")
            for i in range(60)]
    many = Holders(1830, "peak", 0, rows)
    lines = str(many).splitlines()
    assert len(lines) == 21 and lines[2].split()[0] == "r59"
    assert lines[-1] == ("and 42 smaller, 903 B; text(all=True) or text("
                         "depth=N) has them")
    assert len(many.text(all=True).splitlines()) == 62
    for wrong in (-1, "2", 1.5):
        with pytest.raises(ValueError, match="no number of levels"):
            many.text(depth=wrong)


def test_by_category_and_by_site_are_lists():
    rows = [Holder("train.py:12 in step", "activation", 4, 1, "device"),
            Holder("train.py:9 in load", "input", 2, 1, "device")]
    for by in ("site", "category"):
        lines = Holders(6, "now", 0, rows, by).text().splitlines()
        assert [line.split("  ")[1] for line in lines[2:]] == [
            "train.py:12 in step", "train.py:9 in load"]


def test_names_of_one_size_are_in_the_order_of_their_numbers():
    numbers = (11, 1, 10, 0, 2, 100, 20)
    rows = [Holder(f"Net.layer{i}.w", "buffer", MIB, 1, "device")
            for i in numbers]
    made = Holders(len(rows) * MIB, "now", 0, rows)
    assert [row.name for row in made.rows] == [
        f"Net.layer{i}.w" for i in sorted(numbers)]
    found = [re.search("layer([0-9]+)", line) for line in str(made).split("\n")]
    assert [int(one[1]) for one in found if one] == sorted(numbers)
    grown = Growth("a to b", 0, [Change(f"Net.{i}", "buffer", MIB, 1)
                                 for i in numbers])
    assert [row.name for row in grown.rows] == [
        f"Net.{i}" for i in sorted(numbers)]


def test_natural_order_of_any_names():
    names = ["", "0", "00", "1", "2", "10", "1" * 5000, "a", "a.2.b", "a.2.c",
             "a.10.b", "a2", "é"]
    assert sorted(reversed(names), key=_table.natural) == [
        "", "0", "00", "1", "2", "10", "1" * 5000, "a", "a2", "a.2.b", "a.2.c",
        "a.10.b", "é"]


def test_text_needs_no_rich():
    done = programs.run("-c", """
import sys
sys.modules["rich"] = None
from stratalloc._rendering import page as _page, tree as _tree
print(_page.Page([_tree.Tree([("a", "buffer", 1)])]).text())
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["total", "1", "B", "buffer",
                                                   "1", "B"]


def test_what_cannot_be_told_yet():
    assert str(leaks(3)) == ("3 steps seen; from 12 on it can be told what "
                             "grows")
    assert str(Growth("a to b", 0, [])) == (
        "+0 B from a to b on device 0: nothing changed")
    assert str(Holders(0, "now", 0, [])) == (
        "device 0 now  bytes\ntotal           0 B")
    assert _leaks.LEAST == 12


def test_what_has_no_room_below_is_told_as_refused():
    """Not as served "if" something leaves that cannot."""
    asked = dataclasses.replace(
        explanation(0), served_by="eviction", missing=0, leaves=6 * MIB,
        room_needed=6 * MIB, room_below=2 * MIB,
        remedy="Room for 4.00 MiB more on the host or on disk would have "
        "served it.")
    assert not asked.fits
    assert "likely refused: 6 MiB would have to leave" in str(asked)
    assert "room for 2 MiB" in str(asked)
    fits = dataclasses.replace(asked, room_below=6 * MIB, remedy="")
    assert fits.fits and "served if 6 MiB are evicted" in str(fits)
