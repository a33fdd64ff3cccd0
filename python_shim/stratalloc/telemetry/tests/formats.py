# SPDX-License-Identifier: Apache-2.0
"""Every exporter with its check, for tests that hold of all of them."""

from stratalloc.telemetry import checks
from stratalloc.telemetry.exports import (chrome, otel, perfetto, pprof,
                                          prometheus, rows, scalars, snapshot,
                                          speedscope, timeline)

# name -> (what writes it, format of checks.FORMATS)
WRITERS = {
    "speedscope.json": (speedscope.write, "speedscope"),
    "snapshot.pickle": (snapshot.write, "snapshot"),
    "snapshot.json": (snapshot.write_json, "snapshot-json"),
    "trace.json": (chrome.write, "chrome"),
    "trace.json.gz": (chrome.write, "chrome"),
    "trace.pftrace": (perfetto.write, "perfetto"),
    "profile.pb.gz": (pprof.write, "pprof"),
    "timeline.json": (timeline.write, "timeline"),
    "events.csv": (rows.write_csv, "csv"),
    "events.parquet": (rows.write_parquet, "parquet"),
    "metrics.prom": (prometheus.write, "prometheus"),
    "metrics.om": (prometheus.write_openmetrics, "openmetrics"),
    "otel.json": (otel.write, "otel"),
    "events.tfevents": (scalars.write_file, "tensorboard"),
}


def export(run, name, folder):
    """The path of a file that was written."""
    path = folder / name
    WRITERS[name][0](run, path)
    return path


def wrong(path):
    """What its check says of a file."""
    return checks.check(path, WRITERS[path.name][1])
