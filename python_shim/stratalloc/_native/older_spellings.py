# SPDX-License-Identifier: Apache-2.0
"""Earlier spellings of arguments, which public functions accept.

The table "One word per concept" in the README of python_shim has each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def by(value: Any) -> Any:
    """What rows are, in today's spelling: "owner" was "module"."""
    return "owner" if value == "module" else value


def keyword(older: str, newer: str) -> Callable[[_Function], _Function]:
    """Passes the keyword `older` of a call on as `newer`."""
    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args, **given):
            if older in given:
                if newer in given:
                    raise TypeError(
                        f"stratalloc.{function.__name__}: {older} is the "
                        f"earlier spelling of {newer}; give one of them")
                given[newer] = given.pop(older)
            return function(*args, **given)

        return call  # type: ignore[return-value]

    return decorate
