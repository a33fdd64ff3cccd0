# SPDX-License-Identifier: Apache-2.0
"""Any name that Python can hold is stored whole and shown as one line."""

import gc
import io
import json

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.accounts import sums  # noqa: E402,F401
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402

MIB = 1 << 20
LONGEST_LINE = 1200  # of a text for people (native's is in it), any name

NAMES = {
    "newline": "a\nb",
    "return": "a\rb",
    "first in brackets": "(no\nscope)",
    "escape": "a\x1b[31mred",
    "separators": "a\u2028b\u2029c\x85d",
    "direction": "abc\u202edcba",
    "quotes": "it's \"so\" \\ `here`",
    "markup": "<script>alert(1)</script> [bold]&amp;",
    "format": "%s %n {0} {name}",
    "json": "\"}, {\"owner\": \"x",
    "emoji": "layer\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "only dots": "../.",
    "only a space": " ",
    "accents": "e\u0301\u0302" * 3,
    "very long": "x" * 100_000,
    "very long parts": "y." * 20_000 + "z",
    "long emoji": "\U0001f525" * 5_000,
}


def texts_with(name):
    """(bytes held, holders, texts for people) while `name` holds the most."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = stratalloc.mark()
    with stratalloc.scope(name, category="activation"):
        # A hole: what pins it is the owner's.
        kept = [torch.empty(MIB, dtype=torch.uint8, device="cuda")
                for _ in range(24)]
        del kept[1:8:2]
        with pytest.raises(torch.OutOfMemoryError) as refused:
            torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
    refusal = str(refused.value)
    del refused  # its frames have these tensors
    found = stratalloc.holders()
    texts = {
        "refusal": refusal,
        "memory_summary": stratalloc.memory_summary(all=True),
        "holders": found.text(all=True),
        "repr": repr(found),
        "html": found._repr_html_(),
        "growth": str(stratalloc.diff(before, stratalloc.mark())),
        "fragmentation": str(stratalloc.fragmentation()),
        "explanation": str(stratalloc.explain(63 * MIB)),
    }
    return sum(each.nbytes for each in kept), found, texts


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_is_stored_whole_and_shown_on_one_line(kind):
    name = NAMES[kind]
    _, _, plain = texts_with("plain")
    held, found, texts = texts_with(name)
    assert {row.name: row.bytes for row in found.rows}[name] == held
    assert json.loads(json.dumps(found.to_dict()))["rows"]
    for what, text in texts.items():
        for line in text.split("\n"):
            assert line.isprintable(), (what, line)
            # A page has the whole name for who points at it.
            assert what == "html" or len(line) <= LONGEST_LINE, (what, line)
    # As many as for any other name, where a path has no parts of its own.
    if not set(".[/") & set(name):
        for what in texts:
            assert texts[what].count("\n") == plain[what].count("\n"), what
    assert "<script>" not in texts["html"].replace("<pre>", "")
    if kind == "markup":
        assert name in texts["refusal"], "what can be shown is"
    if kind == "long emoji":
        texts["refusal"].encode()  # not cut within a character


def test_rich_takes_no_markup():
    rich = pytest.importorskip("rich.console")
    with stratalloc.scope("Marked.[bold]up[/bold]", category="buffer"):
        kept = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    console = rich.Console(width=120, file=io.StringIO())
    console.print(stratalloc.holders())
    text = console.file.getvalue()
    assert "[bold]up[" in text and kept is not None


@pytest.mark.parametrize("child", ["a\0b", "lone \ud800", "new\nline",
                                   "\U0001f525"])
def test_any_childs_name_is_a_path(child):
    """torch takes every str without a dot; a model runs as it did without us."""
    model = type("Oddly", (nn.Sequential,), {})(nn.Linear(4, 4))
    model.add_module(child, nn.Linear(4, 4))
    model = model.to("cuda")
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    mine = [row.name for row in stratalloc.holders().rows
            if row.name.startswith("Oddly") and row.name != "Oddly.0"
            and row.category == "gradient"]
    shown = child.replace("\0", "?").replace("\ud800", "?")
    assert [name.split(".", 1)[1] for name in mine] == [shown]
    assert all(line.isprintable()
               for line in stratalloc.memory_summary(all=True).split("\n"))


@pytest.mark.parametrize("name", ["lone \ud800", "\udfff"])
def test_what_is_no_text_is_refused_at_once(name):
    for use in (lambda: stratalloc.scope(name),
                lambda: stratalloc.annotate(torch.ones(1), name)):
        with pytest.raises(ValueError, match="surrogate"):
            use()


def test_a_log_line_is_one_line(capfd):
    with stratalloc.scope("logged\nsecond line"):
        kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    address = kept.data_ptr()
    del kept
    with pytest.raises(RuntimeError):
        torch.cuda.caching_allocator_delete(address)
    lines = [line for line in capfd.readouterr().err.splitlines()
             if "double free" in line or "second" in line]
    assert len(lines) == 1 and "logged?second line" in lines[0], lines


def test_a_marks_name_is_one_line_too():
    one, other = stratalloc.mark("a\nb"), stratalloc.mark("c")
    assert "\n" not in repr(one)
    assert str(stratalloc.diff(one, other)).count("\n") == (
        str(stratalloc.diff(stratalloc.mark("a"), other)).count("\n"))


