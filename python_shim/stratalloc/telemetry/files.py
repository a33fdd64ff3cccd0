# SPDX-License-Identifier: Apache-2.0
"""A file that somebody names, as a Run: our recordings, torch's snapshots."""

from stratalloc.telemetry import gzipped, recording
from stratalloc.telemetry.regular import opened


_START = 4096  # bytes of a packed file that say what is in it


def load(path):
    """The Run of a file, by what it begins with; it may be packed with gzip.

    Raises:
      TelemetryError: it is neither, or damaged; says what, why and what to do.
      OSError: it cannot be read.
    """
    with opened(path) as file:
        start = file.read(_START)
    if start[:2] == gzipped.MAGIC:
        start = gzipped.begins(start)
    if start.startswith(b"STRAT"):
        return recording.read(path)
    from stratalloc.telemetry import import_torch

    return import_torch.read(path)
