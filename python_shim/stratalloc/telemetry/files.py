# SPDX-License-Identifier: Apache-2.0
"""A file that somebody names, as a Run: our recordings, torch's snapshots."""

from stratalloc.telemetry import recording
from stratalloc.telemetry.regular import opened


def load(path):
    """The Run of a file, by what it begins with.

    Raises:
      TelemetryError: it is neither, or damaged; says what, why and what to do.
      OSError: it cannot be read.
    """
    with opened(path) as file:
        start = file.read(8)
    if start.startswith(b"STRAT"):
        return recording.read(path)
    from stratalloc.telemetry import import_torch

    return import_torch.read(path)
