# SPDX-License-Identifier: Apache-2.0
"""Every exporter with its check, for tests that hold of all of them."""

from stratalloc.telemetry import formats
from stratalloc.telemetry.exports import scalars

# name of a file -> its format
WRITERS = {
    "speedscope.json": "speedscope", "snapshot.pickle": "snapshot",
    "snapshot.json": "snapshot-json", "trace.json": "chrome",
    "trace.json.gz": "chrome", "trace.pftrace": "perfetto",
    "profile.pb.gz": "pprof", "timeline.json": "timeline",
    "events.csv": "csv", "events.parquet": "parquet",
    "metrics.prom": "prometheus", "metrics.om": "openmetrics",
    "otel.json": "otel", "events.tfevents": "tensorboard",
}


def export(run, name, folder):
    """The path of a file that was written."""
    path = folder / name
    if name == "events.tfevents":  # the file of the folder that its format is
        scalars.write_file(run, path)
    else:
        formats.write(WRITERS[name], run, path)
    return path


def wrong(path):
    """What its check says of a file."""
    return formats.check(WRITERS[path.name], path)
