# SPDX-License-Identifier: Apache-2.0
"""Sizes of jobs that are a multiple of a card, and the bounds of their time.

Pure functions. A bound is the larger of two times: that of the bytes that must
cross the bus, and that of computing.

Thread-safety: yes.
Lifetime: values only.
Errors: none.
Invariants: the least bytes of a pass are those of the model that the card
cannot hold beside what the pass itself allocates.
"""

import dataclasses
import math

from tests.system.speed import jobs

MIB, GIB = 1 << 20, 1 << 30
_FLOPS = 49.475e12 * .7  # of card.json in bfloat16, its efficiency included
_BUS = 55e9
# Above this share of its budget the host gives up copies (the setting
# cpu_offload_threshold).
_FULL = .9


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a pass must take: bytes each way, and seconds of computing."""

    least_in: int
    least_out: int
    compute_ns: float
    up: float  # bytes per second
    down: float

    @property
    def bus_ns(self):
        return max(self.least_in / self.up, self.least_out / self.down) * 1e9

    @property
    def ns(self):
        return max(self.bus_ns, self.compute_ns)


def layers(multiple, card, width, copies=1):
    """How many layers, held `copies` times, are so many times the card."""
    layer = width * width * 2
    return max(2, round(multiple * card / (layer * copies)))


def tokens(ratio, least, width, count, products=1):
    """The tokens for which computing takes `ratio` times the bus time.

    products: multiplications of each weight in a pass; 3 with backward.
    """
    seconds = ratio * least / _BUS
    return max(1, round(seconds * _FLOPS
                        / (2 * width * width * count * products)))


def stack(multiple, ratio, card, width, copies=1):
    """The jobs.Stack of a job; copies as of layers()."""
    count = layers(multiple, card, width, copies)
    whole = count * width * width * 2 * copies
    least = max(0, whole - card)
    return jobs.Stack(width, count, tokens(
        ratio, least, width, count, 1 if copies == 1 else 3))


def bound(model_bytes, capacity, compute_ns, bus, written):
    """The Bound of a pass over model_bytes; `written`: all of it is modified."""
    least = max(0, model_bytes - capacity)
    return Bound(least, least if written else 0, compute_ns, *bus)


def host_budget(rule, need, card):
    """Bytes of host memory for a job that allocates `need` bytes at its peak.

    rule: "all", so that the host holds a copy of everything, or a multiple of
    what the card lacks. Rounded up to 32 MiB, the largest handle, with two of
    them to spare.
    """
    wanted = (need / _FULL if rule == "all"
              else float(rule) * max(0, need - card))
    return (math.ceil(wanted / (32 * MIB)) + 2) * 32 * MIB


def shown(size):
    """A size in the largest unit in which it is at least 1."""
    return (f"{size / GIB:.3g} GiB" if size >= GIB else
            f"{size / MIB:.3g} MiB")
