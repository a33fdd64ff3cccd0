# SPDX-License-Identifier: Apache-2.0
"""Started: base class of what runs until it is closed."""

from __future__ import annotations

from typing import TypeVar

_Self = TypeVar("_Self", bound="Started")


class Started:
    """Runs until close() or the end of its `with`. A second close() does
    nothing."""

    def close(self) -> None:
        """Stops it."""
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
