# SPDX-License-Identifier: Apache-2.0
"""Pictures show the numbers they were given, to readers of any kind."""

import itertools
import random
import re
import xml.etree.ElementTree

import pytest

from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc._native import stack as _stack
from stratalloc._reports.fragmentation import Fragmentation
from stratalloc._reports.holders import Holder, Holders
from stratalloc._rendering.page import Page
from stratalloc._rendering.plot_svg import Areas, Bars

MIB = 1 << 20
_SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture):
    """Its root. Whatever a name was, it is XML."""
    root = xml.etree.ElementTree.fromstring(picture.svg())
    assert root.tag == _SVG + "svg" and root.get("role") == "img"
    assert [child.tag for child in root[:2]] == [_SVG + "title", _SVG + "desc"]
    assert {element.tag.removeprefix(_SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "rect", "path", "circle", "text"}
    return root


def said(root):
    return root.findtext(_SVG + "title"), root.findtext(_SVG + "desc")


def texts(root):
    return [element.text for element in root.iter(_SVG + "text")]


def test_bars_are_as_long_as_their_bytes():
    rows = [("before", {"parameter": 4 * MIB, "buffer": 0}),
            ("peak", {"activation": 8 * MIB, "parameter": 4 * MIB}),
            ("after", {"parameter": 4 * MIB, "gradient": 2 * MIB})]
    root = parsed(Bars("a cell", rows))
    assert said(root) == ("a cell", (
        "before 4 MiB: parameter 4 MiB; peak 12 MiB: activation 8 MiB, "
        "parameter 4 MiB; after 6 MiB: parameter 4 MiB, gradient 2 MiB"))
    bars = [rect for rect in root.iter(_SVG + "rect") if len(rect)]
    assert [rect[0].text for rect in bars] == [
        "parameter 4 MiB", "parameter 4 MiB", "activation 8 MiB",
        "parameter 4 MiB", "gradient 2 MiB"]
    wide = [float(rect.get("width")) for rect in bars]
    unit = wide[2] / 8
    assert wide == pytest.approx(
        [size * unit for size in (4, 4, 8, 4, 2)], abs=.11)
    # The parts of a bar begin where the one before ends.
    for one, after in itertools.pairwise(bars):
        if one.get("y") == after.get("y"):
            assert float(after.get("x")) == pytest.approx(
                float(one.get("x")) + float(one.get("width")), abs=.11)
    assert texts(root) == ["before", "4 MiB", "peak", "12 MiB", "after",
                           "6 MiB", "parameter", "gradient", "activation"]
    legend = [rect.get("fill") for rect in root.iter(_SVG + "rect")
              if not len(rect)]
    assert len(set(legend)) == 3 and legend[0] == bars[0].get("fill")


def _steps(path):
    """[(x, y)] of the corners of a path of M, H and V."""
    x = y = None
    found = []
    for letter, numbers in re.findall(r"([MHVZ])([-\d. ]*)", path):
        if letter == "M":
            x, y = map(float, numbers.split())
        elif letter == "H":
            x = float(numbers)
        elif letter == "V":
            y = float(numbers)
        found.append((x, y))
    return found


def _covered(path):
    """Square units inside of a closed path."""
    corners = _steps(path)
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in
                   zip(corners, corners[1:] + corners[:1]))) / 2


def test_areas_cover_bytes_times_time():
    rng = random.Random(3)
    times = sorted(rng.sample(range(10 ** 6), 40))
    parts = {name: [rng.choice([0, 1, 5]) * MIB for _ in times]
             for name in ("parameter", "activation", "cache")}
    end = 10 ** 6
    whole = [sum(each) for each in zip(*parts.values())]
    limit = [20 * MIB] * len(times)
    root = parsed(Areas("a run", times, end, parts, {"limit": limit},
                        [(5 * 10 ** 5, "step <1>")]))
    paths = {path[0].text.split(", at most")[0]: path
             for path in root.iter(_SVG + "path") if len(path)}
    assert set(paths) == {"parameter", "activation", "cache", "limit",
                          "step <1>"}
    lasts = [b - a for a, b in itertools.pairwise([*times, end])]
    unit = None
    for name, numbers in parts.items():
        amount = sum(size * last for size, last in zip(numbers, lasts))
        covered = _covered(paths[name].get("d"))
        unit = unit or covered / amount
        assert covered == pytest.approx(amount * unit, rel=.01), name
    # The limit is above all of them, and as high as its bytes.
    highest = min(y for name in parts for _, y in _steps(paths[name].get("d")))
    (_, level), *_ = _steps(paths["limit"].get("d"))
    ground = max(y for _, y in _steps(paths["parameter"].get("d")))
    assert (ground - highest) / (ground - level) == pytest.approx(
        max(whole) / (20 * MIB), rel=.01)
    at = whole.index(max(whole))
    title, desc = said(root)
    assert title == "a run" and desc.startswith(
        f"1 ms; most at {_plot_svg.shown_time(times[at])}, "
        f"{max(whole) // MIB} MiB: ")
    assert desc.endswith(f"; {_plot_svg.format_size(whole[-1])} at the end")
    assert f"most {max(whole) // MIB} MiB" in texts(root)
    assert texts(root)[-4:] == ["parameter", "activation", "cache", "limit"]


def test_names_are_text():
    evil = "</title><script>alert(\"&1\")</script>\x1b\ud800\n'\" onload=x"
    for picture in (Bars(evil, [(evil, {evil: 1, "b": 2})]),
                    Areas(evil, [0, 5], 9, {evil: [1, 2]}, {evil: [3, 3]},
                          [(1, evil)])):
        root = parsed(picture)  # no element and no attribute of the name's
        assert 'alert("&1")' in said(root)[0]
        assert "\x1b" not in picture.svg() and "\n" not in picture.svg()
        assert len(list(root.iter(_SVG + "title"))) >= 3
        assert max(map(len, texts(root))) < 60  # a legend has a width


def test_nothing_is_no_picture():
    assert Bars("a", []).svg() == Bars("a", [("x", {"b": 0})]).svg() == ""
    assert Areas("a", [], 0, {}).svg() == ""
    assert Areas("a", [0], 5, {"x": [0]}, {"reserved": [0]}).svg() == ""
    assert parsed(Areas("a", [7], 7, {"x": [1]})) is not None


def _luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [c / 12.92 if c <= .04045 else ((c + .055) / 1.055) ** 2.4
             for c in parts]
    return sum(w * c for w, c in zip((.2126, .7152, .0722), parts))


def test_colours_are_seen_in_the_light_and_in_the_dark():
    """Three to one against both, as WCAG 2.1 has it for graphics (1.4.11)."""
    assert len(set(_plot_svg.COLOURS)) == len(_stack.CATEGORIES)
    for colour in _plot_svg.COLOURS:
        assert 1.05 / (_luminance(colour) + .05) >= 3, colour
        assert (_luminance(colour) + .05) / (
            _luminance("#111111") + .05) >= 3, colour
        assert (_luminance(colour) + .05) / (
            _luminance(_plot_svg.INK) + .05) >= 4.5, colour
    own = _plot_svg.colours_of(_stack.CATEGORIES)
    assert list(own.values()) == list(_plot_svg.COLOURS)
    # Others have one each as long as there are some, whoever comes before.
    for first in ([], ["gradient"], list(_stack.CATEGORIES)):
        found = _plot_svg.colours_of([*first, *"abcdefghi"])
        assert len({found[name] for name in "abcdefghi"}) == 9


def test_every_category_has_its_place():
    assert sorted(_plot_svg._ORDER) == sorted(_stack.CATEGORIES)
    assert _plot_svg.ordered({"z": 1, "activation": 1, "a": 1,
                              "parameter": 1}) == [
        "parameter", "activation", "z", "a"]


def test_a_terminal_has_no_pictures():
    bars = Bars("a", [("x", {"parameter": 1})])
    page = Page(["one", bars, "two"])
    assert page.text() == "one\ntwo"
    assert bars.svg() in page.html()


def test_results_have_pictures():
    rows = [Holder("Net", "parameter", 3 * MIB, 1, "device"),
            Holder("Net", "gradient", MIB, 1, "device"),
            Holder("Net", "parameter", 2 * MIB, 1, "host")]
    found = Holders(6 * MIB, "now", 0, rows)
    picture, = [part for part in found._page().parts
                if isinstance(part, _plot_svg.Picture)]
    assert said(parsed(picture)) == (
        "device 0 now by category",
        "device 4 MiB: parameter 3 MiB, gradient 1 MiB; host 2 MiB: "
        "parameter 2 MiB")
    assert picture.svg() in found._repr_html_()
    assert "<svg" not in Holders(
        6 * MIB, "now", 0, rows, "category")._repr_html_()
    assert "<svg" not in Holders(0, "now", 0, [])._repr_html_()
    sizes = {"reserved": 10 * MIB, "allocated": 4 * MIB, "pending": MIB,
             "stranded": 2 * MIB, "releasable": 2 * MIB,
             "in_private_pools": MIB}
    (desc,) = re.findall("<desc>(.*?)</desc>",
                         Fragmentation(0, sizes, [])._repr_html_())
    assert desc == ("reserved 10 MiB: allocated 4 MiB, stranded 2 MiB, "
                    "releasable 2 MiB, pending 1 MiB, in private pools 1 MiB")
