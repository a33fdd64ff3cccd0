# SPDX-License-Identifier: Apache-2.0
"""Rows of the yardstick: one figure of one job each, as JSON and as tables.

A row has the keys of every benchmark of this repository (name, value, unit,
baseline, baseline_name, ratio, goal, pass), and says what it was measured on:
card, card_bytes, capacity, model_bytes, host_budget, handle_bytes.

Thread-safety: yes; nothing is kept.
Lifetime: plain dicts.
Errors: ValueError for a file that is not one of rows.
Invariants: names are unique in a file, so that two files can be compared.
"""

import json

_KEYS = ("name", "value", "unit", "baseline", "baseline_name", "ratio", "goal",
         "pass")
_SHARES = ("time", "time by windows")  # figures shown with their share
_WAITS = ("operator", "malloc")  # figures of the program's thread


class Job:
    """Collects the rows of one job.

    group, name: of the job. about: the keys that say what it was measured on.
    """

    def __init__(self, group, name, **about):
        self.group, self.name, self.about = group, name, about
        self.rows = []

    def add(self, figure, value, unit, baseline=None, baseline_name=None,
            most=None, least_share=None):
        """Adds a figure; `most` bounds its ratio, `least_share` the inverse.

        A value of None is one that is not computed yet.
        """
        ratio = value / baseline if baseline else None
        goal = held = None
        if most is not None:
            goal = f"<= {most:g}x"
            held = ratio is not None and ratio <= most
        elif least_share is not None:
            goal = f"share >= {least_share:g}"
            held = ratio is not None and 1 / ratio >= least_share
        self.rows.append({
            "name": f"{self.group} {self.name}: {figure}", "value": value,
            "unit": unit, "baseline": baseline, "baseline_name": baseline_name,
            "ratio": ratio, "goal": goal, "pass": held, "group": self.group,
            "job": self.name, "figure": figure, **self.about})


def read(path):
    """The rows of a file, by their names."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, dict) or not all(
            isinstance(row, dict) and set(_KEYS) <= set(row)
            for row in found.get("rows", [None])):
        raise ValueError(f"{path}: not a file of the yardstick")
    return {row["name"]: row for row in found["rows"]}


def cell(row):
    """A figure for people: a share, a multiple of its baseline, or a value."""
    figure, ratio = row["figure"], row["ratio"]
    if row["value"] is None:
        return "?"
    if figure in _SHARES and ratio:
        return f"{row['value']:.1f} ({1 / ratio:.2f})"
    if ratio is not None and _is_multiple(row):
        return f"{ratio:.2f}x"
    if row["unit"] == "bytes":
        return f"{row['value'] / (1 << 30):.2f}"
    return f"{row['value']:.3g}"


def _is_multiple(row):
    return row["unit"] == "bytes" or row["figure"].startswith("pass") or (
        "against" in row["figure"])


def _heading(row):
    figure, ratio = row["figure"], row["ratio"]
    if figure in _SHARES:
        return figure.replace("time", "ms", 1) + " (share)"
    if ratio is None or not _is_multiple(row):
        unit = "GiB" if row["unit"] == "bytes" else row["unit"]
        return f"{figure}, {unit}"
    return (f"{figure}/least" if row["unit"] == "bytes" and "/" not in figure
            else figure)


def table(found, before=None):
    """Lines of text: a job each, its figures in columns; "now < before".

    Waits have a table of their own. A figure that holds its goal ends with
    "+", one that misses it with "-".
    """
    lines = []
    for group in dict.fromkeys(row["group"] for row in found):
        for title, waits in ((group, False), (f"{group}: waits", True)):
            of_table = [row for row in found if row["group"] == group
                        and row["figure"].startswith(_WAITS) == waits]
            if of_table:
                lines += _one_table(title, of_table, before or {}) + [""]
    return lines


def _one_table(title, of_table, before):
    headings, jobs = {}, {}
    for row in of_table:
        headings.setdefault(row["figure"], _heading(row))
        text = cell(row)
        if row["name"] in before:
            text += " < " + cell(before[row["name"]])
        if row["pass"] is not None:
            text += " +" if row["pass"] else " -"
        jobs.setdefault(row["job"], {})[row["figure"]] = text
    return _aligned([[title, *headings.values()]] + [
        [job, *(figures.get(name, "") for name in headings)]
        for job, figures in jobs.items()])


def _aligned(cells):
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  ".join(text.ljust(width) if not number else text.rjust(width)
                      for number, (text, width) in enumerate(
                          zip(line, widths))).rstrip() for line in cells]
