# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format and OpenMetrics, by prometheus_client: for a file
that node-exporter's textfile collector reads, or for a scrape."""

from stratalloc.telemetry.errors import MissingPackageError
from stratalloc.telemetry.exports import metrics
from stratalloc.telemetry.exports.target import target, text

PREFIX = "stratalloc_"


def write(run, path, modules=0):
    """Prometheus' text format; `modules` as metrics.families()."""
    _write(run, path, modules, "prometheus_client.exposition")


def write_openmetrics(run, path, modules=0):
    _write(run, path, modules, "prometheus_client.openmetrics.exposition")


def collector(run, modules=0):
    """For a prometheus_client registry.

    Raises:
      MissingPackageError: prometheus_client is not installed.
    """
    core = _import("prometheus_client.core")
    kinds = {"gauge": core.GaugeMetricFamily,
             "counter": core.CounterMetricFamily}

    class Collector:
        def collect(self):
            for family in metrics.families(run, modules):
                made = kinds[family.kind](PREFIX + family.name, family.help,
                                          labels=family.labels)
                for labels, value in family.samples:
                    made.add_metric([text(label) for label in labels], value)
                yield made

    return Collector()


def _import(name):
    try:
        import importlib

        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError("Prometheus", "prometheus_client",
                                  error) from None


def _write(run, path, modules, module):
    registry = _import("prometheus_client").CollectorRegistry(auto_describe=False)
    registry.register(collector(run, modules))
    made = _import(module).generate_latest(registry)
    with target(path) as file:
        file.write(made)
