# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that settings have: how each is read and written."""

import os
import typing

from stratalloc._native import core as _core
from stratalloc.sizes import parse_size


def _size(value):
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("not a size (write 32MiB, 2GiB or plain bytes)")
    size = parse_size(value) if isinstance(value, str) else value
    if size < 0:
        raise ValueError("negative")
    return size


def _switch(value):
    if isinstance(value, bool):
        return value
    if value in ("on", "off"):
        return value == "on"
    raise ValueError("neither on nor off")


def _fraction(value):
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError("not a number between 0 and 1") from None
    if not 0.0 < number <= 1.0:
        raise ValueError("not a number above 0 and at most 1")
    return number


def _level(value):
    if value not in _core.TELEMETRY_LEVELS:
        raise ValueError(f"not one of {', '.join(_core.TELEMETRY_LEVELS)}")
    return value


def _codec(value):
    if value not in _core.DISK_CODECS:
        raise ValueError(f"not one of {', '.join(_core.DISK_CODECS)}")
    return value


def _directory(value):
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("not a path")
    path = os.fspath(value)
    if path and not os.path.isdir(path):
        raise ValueError("no such directory")
    return path


def _count(value):
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("not a whole number")
    if isinstance(value, str):
        if not (value.isascii() and value.isdecimal()):
            raise ValueError("not a whole number from 0")
        value = int(value)
    if not 0 <= value < 1 << 31:
        raise ValueError("not between 0 and 2147483647")
    return value


class Kind(typing.NamedTuple):
    """What the values of a setting are."""

    read: typing.Callable  # of what a user gives, or ValueError
    # The text of a value that was read, for STRATALLOC_CONF and the core.
    write: typing.Callable


SWITCH = Kind(_switch, lambda value: "on" if value else "off")
SIZE = Kind(_size, str)
FRACTION = Kind(_fraction, repr)
DIRECTORY = Kind(_directory, str)
LEVEL = Kind(_level, str)
CODEC = Kind(_codec, str)
COUNT = Kind(_count, str)
