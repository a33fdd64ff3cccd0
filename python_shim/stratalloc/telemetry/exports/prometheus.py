# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format and OpenMetrics of a run: for a file that
node-exporter's textfile collector reads, or for whoever converts it on."""

from stratalloc.telemetry.exports import exposition, metrics
from stratalloc.telemetry.exports.target import target


def write(run, path, modules=0):
    """Prometheus' text format; `modules` as metrics.families().

    Raises:
      MissingPackageError: prometheus_client is not installed.
    """
    _write(run, path, modules, openmetrics=False)


def write_openmetrics(run, path, modules=0):
    _write(run, path, modules, openmetrics=True)


def _write(run, path, modules, openmetrics):
    made = exposition.written(lambda: metrics.families(run, modules),
                              openmetrics)
    with target(path) as file:
        file.write(made)
