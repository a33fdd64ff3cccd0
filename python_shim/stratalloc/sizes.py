# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes as text: what a user writes, and what a user is shown.

One M is 10^6 bytes to some and 2^20 to others: only KiB, MiB, GiB and TiB are
read, and nothing is guessed.
"""

import math
import operator
import re

_UNITS = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE_TEXT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")
_NO_CARD = 1 << 60  # bytes, more than any has


def parse_size(text):
    """Bytes of "32MiB", "1.5GiB", "4096"; ValueError if it is none of them."""
    match = _SIZE_TEXT.match(text)
    if match is None:
        raise ValueError("not a size (write 32MiB, 2GiB or plain bytes)")
    number, unit = match.groups()
    if unit and unit.lower() not in _UNITS:
        raise ValueError(f"unknown unit {unit!r}{_meant(number, unit)} "
                         "(the units are B, KiB, MiB, GiB and TiB)")
    factor = _UNITS[unit.lower()] if unit else 1
    value = float(number) * factor if "." in number else int(number) * factor
    if value != int(value):
        if factor == 1:
            raise ValueError("not a whole number of bytes")
        value = math.ceil(value)  # as a size that a message rounded
    if value >= 1 << 63:
        raise ValueError("larger than any memory")
    return int(value)


def _whole(size):
    if isinstance(size, bool):
        raise TypeError("a bool is no number of bytes")
    if isinstance(size, float) and int(size) == size:
        return int(size)  # 1.5e9
    try:
        return operator.index(size)
    except TypeError:
        raise TypeError("give a whole number of bytes, or text as \"2 GiB\""
                        ) from None


def asked_size(asker, size, least):
    """Bytes of a caller's `size`, a number or text; ValueError names `asker`."""
    try:
        wanted = parse_size(size) if isinstance(size, str) else _whole(size)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"stratalloc.{asker}: size={size!r}: {error}") from None
    if not least <= wanted < _NO_CARD:
        raise ValueError(f"stratalloc.{asker}: size={size!r}: give bytes from "
                         f"{least}, or text as \"2 GiB\"")
    return wanted


def _meant(number, unit):
    """M and MB are 10^6 bytes to some and 2^20 to others: we do not guess."""
    for known in ("KiB", "MiB", "GiB", "TiB"):
        if unit.lower() in (known[0].lower(), known[0].lower() + "b"):
            return f"; write {number}{known}"
    return ""


def format_size(value):
    """Bytes for people: the largest IEC unit that keeps three digits."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor:
            scaled = value / factor
            digits = 0 if scaled == int(scaled) else 2 if scaled < 100 else 1
            return f"{sign}{scaled:.{digits}f} {unit}"
    return f"{sign}{value} B"
