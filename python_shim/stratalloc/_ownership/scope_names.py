# SPDX-License-Identifier: Apache-2.0
"""Names of scopes: what users write, checked; what is stored."""

from stratalloc._native import stack as _stack

# What the core calls bytes of no scope, and of scopes that are too many.
_TAKEN = ("(no scope)", "(other scopes)")


def check(function, name, argument="name"):
    """Raises TypeError or ValueError if `name` cannot be a scope's; its text
    calls it as the function's argument is called."""
    if not isinstance(name, str):
        raise TypeError(f"stratalloc.{function}: {argument} must be a str, not "
                        f"{type(name).__name__}")
    if not name or "\0" in name:
        raise ValueError(f"stratalloc.{function}: {argument} must be non-empty "
                         f"and without NUL, not {name!r}")
    if name in _TAKEN:
        raise ValueError(f"stratalloc.{function}: {name!r} is what reports call "
                         "the bytes of no scope of a name; use another name")
    if name != storable(name):
        raise ValueError(f"stratalloc.{function}: {argument} holds a lone "
                         f"surrogate, which is no text: {name!r}; decode it "
                         "first")


def storable(path):
    """`path` as the core can hold it, which has text: torch takes any str for a
    child's name, and a model must run whatever it calls its children."""
    return path.encode("utf-8", "replace").decode().replace("\0", "?")


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
