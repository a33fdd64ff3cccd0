# SPDX-License-Identifier: Apache-2.0
"""What users write for a scope's name and category, checked."""

from stratalloc import _stack


def check(function, name):
    """Raises TypeError or ValueError if `name` cannot be a scope's."""
    if not isinstance(name, str):
        raise TypeError(f"stratalloc.{function}: name must be a str, not "
                        f"{type(name).__name__}")
    if not name or "\0" in name:
        raise ValueError(f"stratalloc.{function}: name must be non-empty and "
                         f"without NUL, not {name!r}")


def category(function, name):
    """The number of a category, None of None. Reads earlier spellings."""
    name = _stack.OLDER.get(name, name)
    if name is None:
        return None
    if name not in _stack.CATEGORIES:
        raise ValueError(
            f"stratalloc.{function}: category {name!r} does not exist; use "
            f"one of {', '.join(_stack.CATEGORIES)} or None")
    return _stack.CATEGORIES.index(name)
