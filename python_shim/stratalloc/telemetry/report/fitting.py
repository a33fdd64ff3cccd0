# SPDX-License-Identifier: Apache-2.0
"""fitting(): as much of runs as a page of at most 5 MiB has room for.

bounds.py counts rows and shapes; how large they are names decide. So the page
is made, and where it is larger, made again with less of everything. What is
told of each device at least has no such bound: a few dozen KiB, which hundreds
of files add up.
"""

from stratalloc.telemetry.report import data, page

MOST = 5 << 20  # bytes of the file
_AIM = .9  # of them, since sizes do not fall as room does
_LEAST = .01  # of the room, where Bounds are what they are at least


def fitting(runs, most=MOST):
    """The dict of data.data()."""
    room = 1.
    while True:
        told = data.data(runs, room)
        size = len(page.page(told).encode())
        if size <= most or room <= _LEAST:
            return told
        room = max(_LEAST, room * _AIM * most / size)
