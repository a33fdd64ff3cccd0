# SPDX-License-Identifier: Apache-2.0
"""lifetimes(), sizes(): how long blocks were on the device, and how large they
were, in powers of two: [[least, below, blocks, bytes]]."""

import numpy as np


def lifetimes(walked):
    """Of blocks that began and ended while this was recorded, in ns, and how
    many others there were. A block that leaves the device and comes back is
    there twice."""
    rows, times = walked.rows, walked.run.events["time"]
    whole = (rows["begin"] >= 0) & (rows["asked"] < len(times))
    rows = rows[whole]
    took = times[rows["asked"]] - times[rows["begin"]]
    return {"bars": _powers(took, rows["size"]),
            "others": int((~whole).sum())}


def sizes(walked):
    """Of what the program asked for, in bytes."""
    rows = walked.rows[~walked.rows["moved"]]
    return {"bars": _powers(rows["requested"], rows["size"]), "others": 0}


def _powers(values, weights):
    """Bars from the first to the last that has blocks, without a gap."""
    values = np.maximum(values, 0)
    # frexp is exact up to 2**53, far beyond what a block or a run has.
    power = np.where(values > 0, np.frexp(values.astype("f8"))[1], 0)
    if not len(power):
        return []
    counts = np.bincount(power)
    totals = np.zeros(len(counts), "<i8")
    np.add.at(totals, power, weights)
    low = int(power.min())
    return [[0 if i == 0 else 1 << (i - 1), 1 << i, int(counts[i]),
             int(totals[i])] for i in range(low, len(counts))]
