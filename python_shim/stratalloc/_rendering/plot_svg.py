# SPDX-License-Identifier: Apache-2.0
"""Pictures of bytes for notebooks: bars of parts, and areas over time, as SVG.

Whole in itself: no script, no link, no identifier that a second picture of the
page could have too. Lines and words have the page's own colour; those of parts
are seen on white and on black. A reader without eyes for it has <title>, which
names the picture, and <desc>, which says what it shows. Text and rich pass
pictures over: the tables beside them have the same numbers.
"""

import html

from stratalloc._native import stack as _stack
from stratalloc._rendering import table as _table
from stratalloc.sizes import format_size

# Of categories, in their order, here and in the report's page; three to one and
# more against white and #111, and 4.5 to one of text upon them in INK.
COLOURS = ("#808080", "#2f7ed8", "#0f8f85", "#cf6a0c", "#9a63d3", "#3f9b3a",
           "#a9772b", "#d24f8c", "#7f8a1f")
INK = "#0b0e11"
_OF = dict(zip(_stack.CATEGORIES, COLOURS))
_OTHERS = COLOURS[1:] + COLOURS[:1]  # grey last, which says "unknown"
# What lives longest is drawn lowest, so that what comes and goes is above it.
_ORDER = ("parameter", "buffer", "optimizer_state", "gradient", "workspace",
          "input", "activation", "temporary", "unknown")

_WIDE = 720  # units, as wide as the page allows, at most so many pixels
_LETTER = 6.7  # units that a letter of 11 px is wide, or less
_LINE = 18
_BAR = 14
_LONGEST = 30  # letters of a name
_MARKS = 20  # with more of them their lines would be a hatching


class Picture:
    """One that a page has beside its tables."""

    def svg(self):
        """The element; "" if there is nothing to be seen."""
        raise NotImplementedError


class Bars(Picture):
    """A bar for each row, of one scale, and what it consists of.

    title: what is shown. rows: [(label, {part: bytes})]; zeros are left out.
    """

    def __init__(self, title, rows):
        self.title = title
        self.rows = [(label, {part: size for part, size in parts.items()
                              if size > 0}) for label, parts in rows]

    def svg(self):
        sums = [sum(parts.values()) for _, parts in self.rows]
        if not any(sums):
            return ""
        colours = colours_of([part for _, parts in self.rows
                              for part in parts])
        left = _wide(max((label for label, _ in self.rows), key=len)) + 10
        room = _WIDE - left - _wide(max(map(format_size, sums), key=len)) - 10
        out, at = [], 4
        for (label, parts), whole in zip(self.rows, sums):
            out.append(_text(left - 10, at + _BAR - 3, _shown(label), "end"))
            x = left
            for part in ordered(parts):
                wide = room * parts[part] / max(sums)
                out.append(
                    f'<rect x="{_n(x)}" y="{at}" width="{_n(wide)}" '
                    f'height="{_BAR}" fill="{colours[part]}">'
                    f'{_titled(f"{part} {format_size(parts[part])}")}</rect>')
                x += wide
            out.append(_text(x + 6, at + _BAR - 3, format_size(whole)))
            at += _LINE
        only = self.rows[0][1] if len(self.rows) == 1 else {}
        legend, at = _legend(
            [(f"{_shown(part)} {format_size(only[part])}" if part in only
              else _shown(part), colours[part])
             for part in ordered(colours)], at + 4)
        said = "; ".join(
            f"{label} {format_size(whole)}: " + _listed(parts)
            for (label, parts), whole in zip(self.rows, sums))
        return _svg(self.title, said, at, out + legend)


class Areas(Picture):
    """Parts upon each other, over time; each number holds until the next.

    title: what is shown. times: ns, rising. end: ns, where the last number
    ends. parts: {name: numbers, one for each of times}. lines: {name: numbers},
    drawn above them. marks: [(ns, name)].
    """

    _HIGH, _LEFT, _TOP = 180, 84, 16

    def __init__(self, title, times, end, parts, lines=None, marks=()):
        self.title, self.times = title, times
        self.end = max(end, times[-1] + 1) if len(times) else end
        self.parts = {name: numbers for name, numbers in parts.items()
                      if any(numbers)}
        self.lines = {name: numbers for name, numbers in (lines or {}).items()
                      if any(numbers)}
        self.marks = list(marks) if len(marks) <= _MARKS else []

    def svg(self):
        sums = [sum(each) for each in zip(*self.parts.values())]
        top = max([*sums, *(max(numbers) for numbers in self.lines.values())],
                  default=0)
        if not top:
            return ""
        step = 1 << max(0, (top - 1).bit_length() - 2)
        self._scale = (self._HIGH / top,
                       (_WIDE - self._LEFT - 10) / max(1, self.end))
        out = self._axes(top, step)
        colours = colours_of(self.parts)
        below = [0] * len(self.times)
        for name in ordered(self.parts):
            above = [sum(each) for each in zip(below, self.parts[name])]
            out.append(f'<path d="{self._area(below, above)}" '
                       f'fill="{colours[name]}">'
                       + _titled(f"{name}, at most "
                                 f"{format_size(max(self.parts[name]))}")
                       + "</path>")
            below = above
        dashes = ("", "5 3", "2 2", "8 3 2 3")
        for number, (name, numbers) in enumerate(self.lines.items()):
            out.append(f'<path d="{self._line(numbers)}" fill="none" '
                       'stroke="currentColor" stroke-dasharray='
                       f'"{dashes[number % len(dashes)]}">'
                       + _titled(f"{name}, at most "
                                 f"{format_size(max(numbers))}") + "</path>")
        out += self._marked()
        said = f"{shown_time(self.end)}"
        if sums and max(sums):
            peak = sums.index(max(sums))
            out += self._peak(peak, max(sums))
            said += (f"; most at {shown_time(self.times[peak])}, "
                     f"{format_size(sums[peak])}: " + _listed(
                         {name: numbers[peak]
                          for name, numbers in self.parts.items()})
                     + f"; {format_size(sums[-1])} at the end")
        legend, at = _legend(
            [(_shown(name), colours[name]) for name in ordered(colours)]
            + [(_shown(name), dashes[number % len(dashes)])
               for number, name in enumerate(self.lines)],
            self._TOP + self._HIGH + _LINE + 6)
        return _svg(self.title, said, at, out + legend)

    def _x(self, time):
        return self._LEFT + time * self._scale[1]

    def _y(self, size):
        return self._TOP + self._HIGH - size * self._scale[0]

    def _axes(self, top, step):
        out = []
        for size in range(0, top + 1, step):
            y = _n(self._y(size))
            out.append(f'<path d="M{self._LEFT} {y}H{_WIDE - 10}" '
                       'stroke="currentColor" opacity=".2"/>')
            out.append(_text(self._LEFT - 6, float(y) + 4, format_size(size),
                             "end"))
        for part in range(5):
            time = self.end * part // 4
            out.append(_text(self._x(time), self._TOP + self._HIGH + 15,
                             shown_time(time) if time else "0",
                             ("start", "middle", "middle", "middle",
                              "end")[part]))
        return out

    def _line(self, numbers):
        """Along the numbers; those that follow each other alike are one."""
        path = [f"M{_n(self._x(self.times[0]))} {_n(self._y(numbers[0]))}"]
        last = numbers[0]
        for time, number in zip(self.times, numbers):
            if number != last:
                path.append(f"H{_n(self._x(time))}V{_n(self._y(number))}")
                last = number
        return "".join(path) + f"H{_n(self._x(self.end))}"

    def _area(self, below, above):
        path = [self._line(above), f"V{_n(self._y(below[-1]))}"]
        for at in range(len(self.times) - 1, 0, -1):
            if below[at] != below[at - 1]:
                path.append(f"H{_n(self._x(self.times[at]))}"
                            f"V{_n(self._y(below[at - 1]))}")
        return "".join(path) + f"H{_n(self._x(self.times[0]))}Z"

    def _peak(self, at, size):
        x, y = self._x(self.times[at]), self._y(size)
        # Its words are above the picture, where no curve crosses them.
        return [f'<circle cx="{_n(x)}" cy="{_n(y)}" r="3" '
                'fill="currentColor"/>',
                _text(x, self._TOP - 5, "most " + format_size(size),
                      "start" if x < _WIDE / 2 else "end")]

    def _marked(self):
        for time, name in self.marks:
            yield (f'<path d="M{_n(self._x(time))} {self._TOP}V'
                   f'{self._TOP + self._HIGH}" stroke="currentColor" '
                   f'stroke-dasharray="1 3">{_titled(name)}</path>')


def colours_of(parts):
    """part -> its colour: a category's own, else the next that is free."""
    found = {}
    for part in parts:
        if part not in found:
            found[part] = _OF.get(part) or _OTHERS[
                sum(one not in _OF for one in found) % len(_OTHERS)]
    return found


def ordered(parts):
    """Categories by how long they live, then what else there is, as given."""
    known = [part for part in _ORDER if part in parts]
    return known + [part for part in parts if part not in known]


def shown_time(ns):
    """"12.3 ms": a time for people."""
    for unit, factor in (("s", 10 ** 9), ("ms", 10 ** 6), ("µs", 10 ** 3)):
        if ns >= factor:
            return f"{ns / factor:.3g} {unit}" if ns < 1000 * factor else (
                f"{ns / factor:.0f} {unit}")
    return f"{ns} ns"


def _listed(parts):
    return ", ".join(f"{part} {format_size(parts[part])}"
                     for part in sorted(parts, key=lambda one: -parts[one])
                     if parts[part]) or "nothing"


def _legend(entries, at):
    """(elements, where they end). An entry is (text, colour or dashes)."""
    out, x = [], 0
    for text, look in entries:
        wide = _wide(text) + 34
        if x and x + wide > _WIDE:
            x, at = 0, at + _LINE
        if look.startswith("#"):
            out.append(f'<rect x="{_n(x)}" y="{at + 2}" width="10" '
                       f'height="10" fill="{look}"/>')
        else:
            out.append(f'<path d="M{_n(x)} {at + 7}h14" '
                       f'stroke="currentColor" stroke-dasharray="{look}"/>')
        out.append(_text(x + 18, at + 11, text))
        x += wide
    return out, at + _LINE


def _svg(title, said, high, elements):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {_WIDE} {_n(high)}" style="display:block;'
            f"width:100%;max-width:{_WIDE}px;margin:.4em 0;"
            'font:11px var(--jp-code-font-family,monospace)">'
            + _titled(title) + f"<desc>{_escaped(said)}</desc>"
            + "".join(elements) + "</svg>")


def _text(x, y, text, anchor="start"):
    return (f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" '
            f'fill="currentColor">{_escaped(text)}</text>')


def _titled(text):
    return f"<title>{_escaped(text)}</title>"


def _shown(name):
    return _table.cut(_table.printable(name), _LONGEST)


def _wide(text):
    return _table.cells(_shown(text)) * _LETTER


def _escaped(text):
    return html.escape(_table.printable(text), quote=True)


def _n(number):
    """As few digits as a picture needs."""
    return f"{number:.1f}".removesuffix(".0")
