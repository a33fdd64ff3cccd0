# SPDX-License-Identifier: Apache-2.0
"""What is returned: a mapping, a table in a terminal, HTML in a notebook."""

import dataclasses
import html.parser
import io
import json
import os
import random
import re
import sys
import types
from collections.abc import Mapping

import pytest
from IPython.lib import pretty
from rich.console import Console

from bazel import programs
from stratalloc._explanation import Explanation
from stratalloc._fragments import Fragmentation, Hole
from stratalloc._growth import Change, Growth, Mark
from stratalloc._holders import Holder, Holders
from stratalloc._leaks import Leaks
from stratalloc import _leaks
from stratalloc._page import Page
from stratalloc._stats import Stats
from stratalloc import _table
from stratalloc import _table_rich

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """80 x 24, whatever the test runs in."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.delenv("NO_COLOR", raising=False)


def holders():
    rows = [Holder(f"Net.layers.{i}.{name}", category, size, 1, "device")
            for i in range(4)
            for name, category, size in (("up", "parameter", 4 * MIB),
                                         ("up", "gradient", 4 * MIB),
                                         ("norm", "parameter", 2048))]
    rows += [Holder("Net.head", "parameter", 3 * MIB, 2, "host"),
             Holder("[red]x[/red]\n<b>", "unknown", 512, None, "device")]
    return Holders(sum(row.bytes for row in rows), "now", 0, rows)


def growth():
    return Growth("a to b", 1, [Change("Net.0", "activation", 3 * MIB, 3),
                                Change("Net.1", "activation", -MIB, -1)])


def leaks(steps=12):
    found = Leaks(12, 0, False)
    for i in range(steps):
        held = {("Net.cache", "activation"): (MIB * i, i)}
        found._marks.append(Mark("", 0, MIB * i, held))
        found.seen += 1
    return found


def fragmentation():
    sizes = {"reserved": 10 * MIB, "allocated": 4 * MIB, "rounding": 512,
             "pending": 0, "stranded": 2 * MIB, "separated": MIB,
             "releasable": 4 * MIB, "in_private_pools": 0}
    return Fragmentation(0, sizes, [
        Hole(i << 21, 2 * MIB, 2 * MIB // 12, 1 + i, f"Net.{i}", "activation",
             1024, 7, "transient") for i in range(12)])


def explanation(frees=6):
    return Explanation(
        3 * MIB, 4 * MIB, "nothing", True, "", 0, 0, 0, 0, MIB, True,
        "raise gpu_limit by 1 MiB",
        [{"address": i, "bytes": 512, "owner": "Net", "category": "buffer"}
         for i in range(frees)])


def stats():
    both = {"current": 5 * MIB, "peak": 400 * MIB}
    return Stats({
        "device": 0, "gpu_limit": 1 << 30, "live": 5 * MIB,
        "stays": {"activations": MIB, "evictable": 4 * MIB},
        "allocated": both, "reserved": both,
        "config": {"tiering": True, "host_budget": 64 * MIB, "disk_budget": 0},
        "tiers": {"bytes_evicted": 0, "bytes_restored": 0, "bytes_to_disk": 0,
                  "bytes_from_disk": 0, "stalls": 2, "stall_ns": 1500000,
                  "host_used": 3 * MIB, "host_peak": 7 * MIB,
                  "host_reserved": 11 * MIB, "host_reserved_peak": 13 * MIB},
    }, (2 * MIB, 0))


ALL = [holders, growth, leaks, fragmentation, explanation, stats]


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


@pytest.mark.parametrize("make", [holders, growth, leaks])
def test_rows_add_up_to_the_total(make):
    found = make().to_dict()
    assert set(found) == {"total", "at", "device", "rows"}
    assert sum(row["bytes"] for row in found["rows"]) == found["total"] != 0
    for row in found["rows"]:
        assert list(row)[:4] == ["name", "category", "bytes", "count"]
        assert "tier" in row


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
    (explanation, ["address", "bytes", "owner", "category"])])
def test_to_pandas(make, columns, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas",
                        types.SimpleNamespace(DataFrame=_Frame))
    found = make()
    frame = found.to_pandas()
    assert frame.columns == columns
    rows = next(found[key] for key in ("rows", "holes", "frees")
                if key in found)
    assert frame.rows == rows and rows
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas") as raised:
        found.to_pandas()
    assert "to_dict()" in str(raised.value)


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
the last 12 steps  per step  gained  blocks  by category
total                 1 MiB   6 MiB       6  activation 1 MiB
  Net.cache           1 MiB   6 MiB       6  activation 1 MiB""",
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
3 MiB: refused, 1 MiB are missing with everything evicted that may leave
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
on the device: 4 MiB evictable, 1 MiB activations"""}


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


def printed(found, width=80, height=24, **how):
    """What rich prints, with and without a terminal."""
    out = io.StringIO()
    how = {"force_terminal": False, "color_system": None, **how}
    console = Console(file=out, width=width, height=height, **how)
    console.print(found)
    return out.getvalue()


@pytest.mark.parametrize("make", ALL)
def test_rich_without_a_terminal_is_the_text(make):
    lines = [line.rstrip() for line in printed(make()).splitlines()]
    assert lines == str(make()).splitlines()


def test_rich_on_a_terminal():
    coloured = {"force_terminal": True, "color_system": "standard",
                "_environ": {"TERM": "xterm"}}
    text = printed(holders(), **coloured)
    assert "\x1b[1mtotal" in text and "█" in text
    plain = printed(holders(), force_terminal=True, no_color=True,
                    color_system="standard", _environ={"TERM": "xterm"})
    assert "\x1b" not in plain and "██████████" in plain
    bare = re.sub("\x1b\\[[0-9;]*m", "", text)
    assert bare == plain
    assert "[red]x[/red]?<b>" in plain
    wide = printed(holders(), width=160, **coloured)
    assert "parameter 19.01 MiB, gradient 16 MiB, unknown 512 B" in wide


@pytest.mark.parametrize("make", ALL)
def test_rich_adapts_to_the_width(make):
    for width in (60, 80, 200):
        for terminal in (False, True):
            text = printed(make(), width=width, force_terminal=terminal,
                           no_color=True)
            assert max(map(len, text.splitlines())) <= width
    narrow = printed(make(), width=60, force_terminal=True, no_color=True)
    assert "1 MiB" in narrow or "3 MiB" in narrow


def test_rich_in_a_low_terminal_has_fewer_lines():
    rows = [Holder(f"r{i:02}", "buffer", 1 + i, 1, "device")
            for i in range(60)]
    many = Holders(1830, "peak", 0, rows)
    for height, lines in ((24, 21), (40, 37), (5, 9), (100, 62)):
        assert len(printed(many, height=height).splitlines()) == lines


def test_bars():
    assert [_table_rich.bar(share, 2) for share in
            (0, 1e-9, .0625, .5, .75, 1, None)] == [
                "", "▏", "▏", "█", "█▌", "██", ""]


_ATTRIBUTES = {"svg": ("xmlns", "role", "viewbox", "style"),
               "rect": ("x", "y", "width", "height", "fill"),
               "text": ("x", "y", "text-anchor", "fill")}


@pytest.mark.parametrize("make", ALL)
def test_ipython_in_a_terminal_shows_the_text(make):
    found = make()
    assert pretty.pretty(found) == str(found)
    assert pretty.pretty([found]) == f"[{found!r}]"


class _Checked(html.parser.HTMLParser):
    """Elements close in the order that they opened; texts and titles."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.titles = [], [], [], []
        self.levels = []  # details around each title's own
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        for name, value in attrs:
            assert name in _ATTRIBUTES.get(
                tag, ("class", "style", "title", "open")), (tag, name)
            if name == "title":
                self.titles.append(value)
                self.levels.append(self.open.count("details")
                                   - self.open.count("summary"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style" and data.strip():
            self.texts.append(data)


@pytest.mark.parametrize("make", ALL)
def test_html_is_whole_and_by_itself(make):
    text = make()._repr_html_()
    page = _Checked(text)
    assert set(page.tags) <= {"div", "style", "p", "span", "i", "details",
                              "summary", "svg", "title", "desc", "rect",
                              "text"}
    bare = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|url\(|@import|<script|javascript", bare)
    # The page's own colours, in the dark as well, but for parts of pictures.
    assert not re.search(r"(?<!fill=\")#[0-9a-f]{3}"
                         r"|(?<!current)color:(?!inherit)", text,
                         re.IGNORECASE), text
    said = make().text() if make is stats else make().text(all=True)
    words = set(re.findall(r"\w+", " ".join(page.texts)))
    assert set(re.findall(r"\w+", said.replace("…", ""))) <= words


def test_html_is_escaped():
    evil = '<script>alert("&1")</script>\x1b\n\'" onload=x'
    for made in (
            Holders(1, "now", 0, [Holder(f"({evil}", evil, 1, 1, "device")]),
            Growth(evil, 0, [Change(f"({evil}", evil, 1, 1)]),
            Page([evil])):
        text = made._repr_html_() if made.__class__ is not Page else made.html()
        page = _Checked(text)  # no attribute and no element of the name's
        assert "script" not in page.tags
        assert any('alert("&1")' in each for each in page.texts + page.titles)
        assert "\x1b" not in text


def test_html_nests_as_the_tree_does():
    text = holders()._repr_html_()
    assert text.count("<details open>") == 2  # total and Net
    assert text.count("<details>") == 1  # the layers
    assert 'style="padding-left:4ch" title="layers.0–3 × 4"' in text
    rng = random.Random(5)
    for _ in range(100):
        rows = [Holder(".".join(rng.choice("abc012") for _ in
                                range(rng.randint(1, 5))), "buffer",
                       rng.randint(1, 99), 1, "device")
                for _ in range(rng.randint(0, 40))]
        made = Holders(sum(row.bytes for row in rows), "now", 0, rows)
        page = _Checked(made._repr_html_())
        lines = made._page()._made(None)[-1].rows
        assert page.titles[1:] == [line.name for line in lines]
        assert page.levels[1:] == [line.level for line in lines]


def test_the_terminal_is_the_one_that_is_written_to(monkeypatch):
    assert _table.terminal(sys.stdout) == (80, 24)
    monkeypatch.setenv("COLUMNS", "many")
    monkeypatch.setenv("LINES", "0")
    assert _table.terminal(io.StringIO()) == (_table.WHOLE, 24)
    monkeypatch.setattr("os.get_terminal_size", lambda number: (7, 9))
    assert _table.terminal(types.SimpleNamespace(fileno=lambda: 3)) == (7, 9)
    monkeypatch.setenv("COLUMNS", "50")
    assert _table.terminal(types.SimpleNamespace(fileno=lambda: 3)) == (50, 9)


def test_an_unknown_terminal_has_a_width(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", lambda number: (0, 0))
    stream = types.SimpleNamespace(fileno=lambda: 3)
    assert _table.terminal(stream) == (_table.WIDTH, 24)


def test_a_pipe_and_a_file_have_whole_lines(monkeypatch, tmp_path):
    monkeypatch.delenv("COLUMNS")
    name = "Net." + ".".join(f"block{i}" for i in range(40))
    names = [f"category{i}" for i in range(30)]
    made = Holders(30, "now", 0, [Holder(name, category, 1, 1, "device")
                                  for category in names])
    reader, writer = os.pipe()
    with open(tmp_path / "out", "w") as file, os.fdopen(writer, "w") as pipe:
        for stream in (io.StringIO(), file, pipe):
            page = made._page().text(stream)
            assert name in page and "…" not in page
            assert all(f"{one} 1 B" in page for one in names)
    os.close(reader)


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
from stratalloc import _page, _tree
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
    assert "refused: 6 MiB would have to leave" in str(asked)
    assert "room for 2 MiB" in str(asked)
    fits = dataclasses.replace(asked, room_below=6 * MIB, remedy="")
    assert fits.fits and "served if 6 MiB are evicted" in str(fits)
