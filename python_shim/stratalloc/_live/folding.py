# SPDX-License-Identifier: Apache-2.0
"""Repeated layers of a list as one line, by the rule of holders()' tree.

Layers are one if their names differ in one number, which counts up, and the
same categories are in them: "net.layers.0–5.mlp × 6". Knows no sample.
"""

import re

from stratalloc._rendering import tree as _tree

_NUMBER = re.compile("[0-9]+")


def folded(layers):
    """[(label, [index, ...])] of layers [(name, what must be alike)], in the
    order of the first of each."""
    lines = [(_split(name), alike, [at])
             for at, (name, alike) in enumerate(layers)]
    deepest = max((len(parts) for parts, _, _ in lines), default=0)
    for at in range(1, deepest, 2):
        lines = _folded_at(at, lines)
    return [("".join(parts) + (f" × {len(found)}" if len(found) > 1 else ""),
             found) for parts, _, found in lines]


def _split(name):
    """[text, number, text, ...]: numbers are names of a path."""
    parts = [""]
    for piece in re.split("([./])", name):
        if _NUMBER.fullmatch(piece) and _tree.is_number(piece):
            parts += [piece, ""]
        else:
            parts[-1] += piece
    return parts


def _folded_at(at, lines):
    """The lines, with those that differ in parts[at] alone as one."""
    alike = {}
    for index, (parts, kind, found) in enumerate(lines):
        if at < len(parts):
            alike.setdefault(
                (*parts[:at], None, *parts[at + 1:], kind), []).append(index)
    made = {}
    for group in alike.values():
        for run in _runs(group, at, lines):
            parts, kind, _ = lines[run[0]]
            first, last = (lines[index][0][at] for index in (run[0], run[-1]))
            made[min(run)] = (
                [*parts[:at], f"{first}–{last}", *parts[at + 1:]], kind,
                [one for index in run for one in lines[index][2]])
            made.update(dict.fromkeys(set(run) - {min(run)}))
    return [one for one in (made.get(index, line)
                            for index, line in enumerate(lines))
            if one is not None]


def _runs(group, at, lines):
    """Lists of two or more of the lines whose numbers count up."""
    group = sorted(group, key=lambda index: int(lines[index][0][at]))
    run = group[:1]
    for index in group[1:]:
        if int(lines[index][0][at]) == int(lines[run[-1]][0][at]) + 1:
            run.append(index)
            continue
        if len(run) > 1:
            yield run
        run = [index]
    if len(run) > 1:
        yield run
