# SPDX-License-Identifier: Apache-2.0
"""What is more, and how sure that is: medians over pairs.

A *pair* is the same work measured with something and without it, one right
after the other: what slows the machine down for a while slows both. An interval
is the middle 95 % of the medians of 2000 samples drawn from the pairs, with the
same seed each time: the same pairs give the same interval.
"""

import random
import statistics

_SAMPLES = 2000
_OUTSIDE = 0.05


def median(values):
    """(median, low, high) of single values.

    The median of a handful of pairs is between the smallest and the largest.
    """
    chance = random.Random(7)
    medians = sorted(statistics.median(chance.choices(values, k=len(values)))
                     for _ in range(_SAMPLES))
    cut = int(_SAMPLES * _OUTSIDE / 2)
    return statistics.median(values), medians[cut], medians[-1 - cut]


def difference(ours, without):
    """(median, low, high) of what ours takes more, pair by pair."""
    return median([a - b for a, b in zip(ours, without, strict=True)])


def ratio(ours, without):
    """(median, low, high) of ours over the other, pair by pair."""
    return median([a / b for a, b in zip(ours, without, strict=True)])
