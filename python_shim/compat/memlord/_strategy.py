# SPDX-License-Identifier: Apache-2.0
"""When a device's memory is collected: bands of how full it is.

    {(lo, hi): {"metric": "allocated" | "freed" | "max",
                "threshold": {"bytes": int, "percent": float}}}

The first band with lo <= used % < hi counts. Its threshold is the larger of
bytes and percent of the device's capacity. Due is a collection when the metric
has reached it.

`freed` begins at 0 after a collection, `allocated` does not: by itself it would
make every later free collect again. So by it a collection is due once, and
again when allocated has been below the threshold, or has grown by a quarter
since (the rule by which Python's own collector looks at old objects).
"""

import math

DEFAULT = {
    (0, 50): {"metric": "max", "threshold": {"percent": 50.0}},
    (50, 75): {"metric": "max", "threshold": {"percent": 33.0}},
    (75, 101): {"metric": "max", "threshold": {"percent": 25.0}},
}
_METRICS = ("allocated", "freed", "max")
_FIELDS = ("metric", "threshold")
_THRESHOLDS = ("bytes", "percent")
_GROWTH = 1.25


def validated(strategy):
    """A copy of it that nobody else can change; None: the default.

    ValueError names what is wrong in it.
    """
    if strategy is None:
        strategy = DEFAULT
    if not isinstance(strategy, dict):
        raise ValueError(
            f"memlord: a strategy is a dict of bands, not {strategy!r}; {{}} "
            "has none, None is the default")
    return {_band(key): _rule(key, rule) for key, rule in strategy.items()}


def _band(key):
    if not (isinstance(key, tuple) and len(key) == 2
            and all(map(_is_number, key)) and 0 <= key[0] < key[1]):
        raise ValueError(
            f"memlord: band {key!r} is no (lo, hi) of percent with "
            "0 <= lo < hi; (75, 101) is everything from 75 % on")
    return key


def _rule(key, rule):
    _check(f"band {key!r}", rule, _FIELDS, _FIELDS)
    if rule["metric"] not in _METRICS:
        raise ValueError(
            f"memlord: metric {rule['metric']!r} of band {key!r} is none of "
            f"{', '.join(_METRICS)}")
    threshold = rule["threshold"]
    _check(f"threshold of band {key!r}", threshold, _THRESHOLDS, ())
    if not threshold:
        raise ValueError(f"memlord: the threshold of band {key!r} is empty; "
                         "give bytes, percent or both")
    size, percent = threshold.get("bytes", 0), threshold.get("percent", 0)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"memlord: bytes of band {key!r} are {size!r}, and no "
                         "whole number of 0 or more")
    if not _is_number(percent) or percent < 0:
        raise ValueError(f"memlord: percent of band {key!r} is {percent!r}, "
                         "and no number of 0 or more")
    return {"metric": rule["metric"], "threshold": dict(threshold)}


def _check(what, given, known, needed):
    if not isinstance(given, dict):
        raise ValueError(f"memlord: {what} is {given!r}, and no dict")
    for name in given:
        if name not in known:
            raise ValueError(f"memlord: {what} has no {name!r}; it has "
                             f"{' and '.join(known)}")
    for name in needed:
        if name not in given:
            raise ValueError(f"memlord: {what} lacks {name!r}")


def _is_number(value):
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value))


def rule_of(strategy, percent):
    """The rule of the band that `percent` is in, or None."""
    return next((rule for (lo, hi), rule in strategy.items()
                 if lo <= percent < hi), None)


def threshold_bytes(rule, capacity):
    threshold = rule["threshold"]
    return max(threshold.get("bytes", 0),
               int(capacity * threshold.get("percent", 0) / 100))


class Pace:
    """By which of a device's counters a collection is due, again and again."""

    def __init__(self):
        self._collected_at = None  # allocated at the last one that it caused

    def due(self, metric, threshold, allocated, freed):
        """The name of the counter that makes a collection due, or None."""
        if allocated < threshold:
            self._collected_at = None
        if metric != "allocated" and freed >= threshold:
            return "freed"
        if metric == "freed" or allocated < threshold:
            return None
        if (self._collected_at is not None
                and allocated < self._collected_at * _GROWTH):
            return None
        return "allocated"

    def collected(self, metric, threshold, allocated):
        if metric != "freed" and allocated >= threshold:
            self._collected_at = allocated
