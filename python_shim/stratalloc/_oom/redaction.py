# SPDX-License-Identifier: Apache-2.0
"""Facts without a program's names, for a program that records with --redact.

Each part of a name becomes a number that is its own in these facts, so that who
is who, and what lies in what, can still be seen: "Net.layer1" and "Net.layer2"
are "#1.#2" and "#1.#3". Lines of code, messages and settings that are texts are
left out. Never fails; what it is given is not changed.
"""

import re

# What has a name of the program in it, whatever holds it (facts.py).
_NAMES = ("owner", "name", "mark")
_LEFT_OUT = ("site", "message", "remedy")  # texts with files and names


class Names:
    """Of one report."""

    def __init__(self):
        self._numbers = {}

    def hidden(self, values):
        """A copy of facts, or of a part of them."""
        if isinstance(values, (list, tuple)):
            return [self.hidden(value) for value in values]
        if not isinstance(values, dict):
            return values
        return {key: self._value(key, value) for key, value in values.items()}

    def _value(self, key, value):
        if key in _LEFT_OUT:
            return None
        if key == "settings":
            return {name: None if isinstance(one, str) else one
                    for name, one in value.items()}
        if key in _NAMES and isinstance(value, str):
            # "/" and "." part paths (scopes).
            return re.sub(r"[^./]+", self._number, value)
        return self.hidden(value)

    def _number(self, part):
        return f"#{self._numbers.setdefault(part[0], len(self._numbers) + 1)}"
