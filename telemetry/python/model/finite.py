# SPDX-License-Identifier: Apache-2.0
"""Numbers of files that every format has: finite, and few of them add up to
what has 64 bits.

loads(): JSON of finite numbers. plain(): what a program said of itself, as far
as it can be told. too_much(): sizes whose sum is none.
"""

import json
import math

from stratalloc.telemetry.model import Kind

MOST = 1 << 62  # a number is below
_LONGEST = 256  # characters of a key
_KEYS = 256


def loads(raw):
    """The value of JSON.

    Raises:
      ValueError: it is no JSON, or has a number that is not finite.
      RecursionError, MemoryError: it is too deep or too large.
    """
    return json.loads(raw, parse_constant=_refused, parse_float=_decimal)


def _refused(text):
    raise ValueError(f"{text} is no finite number")


def _decimal(text):
    value = float(text)
    return value if math.isfinite(value) else _refused(text[:40])


def plain(said, levels=3):
    """Of a dict what is text, None, truth, a finite number, or a list or dict
    of these: about, its settings, what a setting has. The rest is left out."""
    return {key[:_LONGEST]: _inside(value, levels)
            for key, value in list(said.items())[:_KEYS]
            if isinstance(key, str) and _told(value, levels)}


def _told(value, levels):
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) < MOST
    return value is None or isinstance(value, str) or (
        levels > 1 and isinstance(value, (dict, list, tuple)))


def _inside(value, levels):
    if isinstance(value, dict):
        return plain(value, levels - 1)
    if isinstance(value, (list, tuple)):
        return [_inside(one, levels - 1) for one in value
                if _told(one, levels - 1)]
    return value


def too_much(run):
    """Do sizes of a run add up to more than 64 bits hold? What a program asked
    for in vain may be any number."""
    real = run.events[run.events["kind"] != Kind.OOM]
    sums = [real[name].sum(dtype="f8") for name in ("bytes", "aux")]
    sums += [sum(one.size for one in some) for some in _sized(run)]
    return max(sums) >= MOST


def _sized(run):
    for name in ("start", "end"):
        segments = [one for device in run.devices
                    for one in getattr(device, name) or ()]
        yield segments
        yield [block for one in segments for block in one.blocks]
