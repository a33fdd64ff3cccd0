# SPDX-License-Identifier: Apache-2.0
"""Results in a terminal with and without rich, in IPython, and as HTML."""

import html.parser
import io
import os
import random
import re
import sys
import types

import pytest
from IPython.lib import pretty
from rich.console import Console

from made_results import ALL, holders, of_80_columns, stats  # noqa: F401
from stratalloc._reports.diff import Change, Growth
from stratalloc._reports.holders import Holder, Holders
from stratalloc._rendering.page import Page
from stratalloc._rendering import table as _table
from stratalloc._rendering import table_rich as _table_rich


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
