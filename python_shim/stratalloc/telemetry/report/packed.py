# SPDX-License-Identifier: Apache-2.0
"""packed(): what a page shows as the JSON that is in it, each name once.

Two lines, `[names,` and `the rest]`. In the rest a text that begins with "@" is
the place of its name, in decimal digits: what is told more than once, and
whatever begins so itself. data/report/browser/main.js undoes it; unpacked()
does for whoever reads a page with Python.
"""

import collections
import json

from stratalloc.telemetry.exports.target import text

_SHORT = 6  # characters of a text that no place is shorter than


def packed(told):
    """The text: UTF-8 takes it, and it ends no script element, whatever names
    are."""
    counts = collections.Counter(_texts(told))
    places = {}
    for one, count in counts.items():
        if one.startswith("@") or count > 1 and len(one) > _SHORT:
            places[one] = len(places)

    def put(one):
        if isinstance(one, str):
            return f"@{places[one]}" if one in places else one
        if isinstance(one, dict):
            return {put(key): put(value) for key, value in one.items()}
        if isinstance(one, (list, tuple)):
            return [put(value) for value in one]
        return one
    return f"[{_json(list(places))},\n{_json(put(told))}]"


def unpacked(said):
    """What json.loads() has of packed()'s dict.

    Raises:
      ValueError: it is no such text.
    """
    names, told = json.loads(said)

    def take(one):
        if isinstance(one, str):
            return names[int(one[1:])] if one.startswith("@") else one
        if isinstance(one, dict):
            return {take(key): take(value) for key, value in one.items()}
        if isinstance(one, list):
            return [take(value) for value in one]
        return one
    return take(told)


def _texts(one):
    """Keys are, too."""
    if isinstance(one, str):
        yield one
    elif isinstance(one, dict):
        for key, value in one.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(one, (list, tuple)):
        for value in one:
            yield from _texts(value)


def _json(told):
    said = json.dumps(told, separators=(",", ":"), allow_nan=False,
                      ensure_ascii=False)
    # A lone surrogate becomes its escape, which JSON has as well.
    return (text(said).replace("&", "\\u0026").replace("<", "\\u003c")
            .replace(">", "\\u003e").replace("\u2028", "\\u2028")
            .replace("\u2029", "\\u2029"))
