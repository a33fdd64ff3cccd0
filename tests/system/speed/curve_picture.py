# SPDX-License-Identifier: Apache-2.0
"""Draws the curve: time of a pass over the size of the card, as SVG.

    python -m tests.system.speed.curve_picture [FILE.json [FILE.svg]]

Thread-safety: yes; reads one file and writes one.
Lifetime: one run.
Errors: ValueError for a file without rows of the curve.
Invariants: the picture follows from the file alone, so a test compares both.
"""

import os
import sys

from tests.system.speed import rows

_RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
_WIDE, _HIGH, _LEFT, _TOP, _BELOW = 640, 260, 56, 28, 46
# The page's own colours in light and dark.
_STYLE = ("<style>svg{color:#1f2328}@media (prefers-color-scheme:dark)"
          "{svg{color:#e6edf3}}</style>")
_COLOURS = {"against no cap": "#cf6a0c", "bound against no cap": "#2f7ed8"}
_NAMES = {"against no cap": "measured",
          "bound against no cap": "bound: the longer of bus and computing"}


def draw(found):
    """The picture of the rows of one curve, as the text of an SVG file."""
    points = {figure: sorted(
        (row["percent"], row["ratio"]) for row in found
        if row["group"] == "curve" and row["figure"] == figure)
        for figure in _COLOURS}
    if not all(points.values()):
        raise ValueError("no rows of the curve")
    first, last = (pick(percent for line in points.values()
                        for percent, _ in line) for pick in (min, max))
    top = int(max(ratio for line in points.values() for _, ratio in line)) + 1
    across = (_WIDE - _LEFT - 24) / max(1, last - first)
    upward = (_HIGH - _TOP - _BELOW) / top

    def place(percent, ratio):
        return (f"{_LEFT + (percent - first) * across:.1f} "
                f"{_HIGH - _BELOW - ratio * upward:.1f}")

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} '
           f'{_HIGH}" font-family="sans-serif" font-size="12" '
           f'fill="currentColor">', _STYLE,
           "<title>Time of a pass against no cap, over the size of the card"
           "</title>"]
    for ratio in range(top + 1):
        begin, end = place(first, ratio), place(last, ratio)
        out.append(f'<path d="M{begin}L{end}" stroke="currentColor" '
                   'stroke-opacity=".2"/>')
        out.append(_text(_LEFT - 8, float(begin.split()[1]) + 4, f"{ratio}x",
                         "end"))
    for percent in sorted({one for one, _ in points["against no cap"]}):
        x = float(place(percent, 0).split()[0])
        if percent != 95:  # its label would touch its neighbours'
            out.append(_text(x, _HIGH - _BELOW + 18, f"{percent} %", "middle"))
    out.append(_text((_WIDE + _LEFT) / 2, _HIGH - 8,
                     "memory of the card, as a share of the model", "middle"))
    for number, (figure, line) in enumerate(points.items()):
        path = "L".join(place(*point) for point in line)
        out.append(f'<path d="M{path}" fill="none" stroke-width="2" '
                   f'stroke="{_COLOURS[figure]}"/>')
        out += [f'<circle cx="{at.split()[0]}" cy="{at.split()[1]}" r="3" '
                f'fill="{_COLOURS[figure]}"><title>{percent} %: {ratio:.2f}x'
                "</title></circle>" for percent, ratio in line
                for at in (place(percent, ratio),)]
        x = _LEFT + 16 + 120 * number
        out.append(f'<path d="M{x - 16} 14h12" stroke-width="2" '
                   f'stroke="{_COLOURS[figure]}"/>')
        out.append(_text(x, 18, _NAMES[figure], "start"))
    return "\n".join([*out, "</svg>", ""])


def _text(x, y, text, anchor):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def main(arguments):
    data, picture = (arguments + [
        os.path.join(_RESULTS, name) for name in
        ("curve.json", "curve.svg")[len(arguments):]])[:2]
    with open(picture, "w", encoding="utf-8") as file:
        file.write(draw(rows.read(data).values()))


if __name__ == "__main__":
    main(sys.argv[1:])
