# SPDX-License-Identifier: Apache-2.0
"""Budget files: what each test of a module needs on the device, by layer.

`test_x.budget.json` beside test_x.py:

    {"version": 1, "tolerance": 0.05,
     "tests": {"test_step": {"peak": 1048576,
                             "layers": {"Net.0 (activation)": 524288, ...}}}}

Bytes of the moment when the device held the most, less workspaces that outlive
the test (pytest_state.py). A test that needs more than
`peak` by more than the tolerance (a share of it) has broken its budget; one
that has no entry has none.
"""

import json

from stratalloc._rendering.table import natural
from stratalloc.sizes import format_size

_VERSION = 1
_TOLERANCE = 0.05
_SHOWN = 8  # layers in a failure


class BudgetError(ValueError):
    """A file that is no budget: which, and what is wrong."""


def file_of(path):
    """The budget file of a test module."""
    return path.with_name(path.stem + ".budget.json")


def read(path):
    """The content of a budget file; None if there is none.

    Raises: BudgetError.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BudgetError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise BudgetError(f"{path} is no budget of version {_VERSION}; write "
                          "it anew with --stratalloc-update-budgets")
    try:
        tolerance = content.get("tolerance", _TOLERANCE)
        if not isinstance(tolerance, (int, float)) or not 0 <= tolerance:
            raise ValueError(f"tolerance {tolerance!r} is no number from 0 on")
        for test in content["tests"].values():
            for size in (test["peak"], *test["layers"].values()):
                if not isinstance(size, int):
                    raise TypeError(f"{size!r} is no number of bytes")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BudgetError(f"{path}: not as a budget is: {error!r}") from None
    return content


class Budgets:
    """The files of a session: compared with, or written at its end."""

    def __init__(self, updates):
        self.updates = updates
        self._files = {}  # path -> content or None
        self._found = {}  # path -> {test: entry}
        self.written = []

    def knows(self, module, name):
        """Is there a budget of this test, or is one written?"""
        try:
            content = self._content(file_of(module))
        except BudgetError:
            return False
        return self.updates or bool(content and content["tests"].get(name))

    def _content(self, path):
        if path not in self._files:
            self._files[path] = read(path)
        return self._files[path]

    def check(self, module, name, peak):
        """What is wrong with a test that needed `peak` (Holders): texts."""
        path = file_of(module)
        if self.updates:
            if peak.total:
                self._found.setdefault(path, {})[name] = _entry(peak)
            return []
        try:
            content = self._content(path)
        except BudgetError as error:
            return [str(error)]
        budget = content and content["tests"].get(name)
        if not budget:
            return []
        most = budget["peak"] * (1 + content.get("tolerance", _TOLERANCE))
        if peak.total <= most:
            return []
        return [_breach(path.name, budget, _entry(peak))]

    def write(self):
        """At the end. Tests that did not run keep what they had."""
        for path, tests in self._found.items():
            try:
                old = read(path) or {}
            except BudgetError:
                old = {}
            content = {"version": _VERSION,
                       "tolerance": old.get("tolerance", _TOLERANCE),
                       "tests": dict(sorted(
                           {**old.get("tests", {}), **tests}.items()))}
            path.write_text(json.dumps(content, indent=1) + "\n",
                            encoding="utf-8")
            self.written.append(path)


def _entry(peak):
    layers = {}
    for row in peak.rows:
        key = f"{row.name} ({row.category})"
        layers[key] = layers.get(key, 0) + row.bytes
    return {"peak": peak.total, "layers": dict(sorted(layers.items()))}


def _breach(file, budget, found):
    """The difference, by layer, the largest first."""
    lines = [f"the device held {format_size(found['peak'])} at once, "
             f"{format_size(found['peak'] - budget['peak'])} above the budget "
             f"of {format_size(budget['peak'])} in {file}:"]
    changes = {name: found["layers"].get(name, 0) - budget["layers"].get(name, 0)
               for name in {**budget["layers"], **found["layers"]}}
    changed = sorted(((name, size) for name, size in changes.items() if size),
                     key=lambda each: (-abs(each[1]), natural(each[0])))
    lines += [f"  {'+' if size > 0 else '-'}{format_size(abs(size)):<10} "
              f"{name}: {format_size(budget['layers'].get(name, 0))} -> "
              f"{format_size(found['layers'].get(name, 0))}"
              for name, size in changed[:_SHOWN]]
    if len(changed) > _SHOWN:
        lines.append(f"  and {len(changed) - _SHOWN} smaller changes")
    lines.append("If that is meant, write it with --stratalloc-update-budgets.")
    return "\n".join(lines)
