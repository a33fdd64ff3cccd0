# SPDX-License-Identifier: Apache-2.0
"""Families of samples in Prometheus' two text formats, by prometheus_client."""

import importlib

from stratalloc.telemetry.errors import MissingPackageError

PREFIX = "stratalloc_"


def registry(tell):
    """A prometheus_client registry of what tell() says at each scrape, a list
    of families.Family.

    Raises:
      MissingPackageError: prometheus_client is not installed.
    """
    found = client().CollectorRegistry()
    found.register(collector(tell))
    return found


def collector(tell):
    """The same for a registry that there is."""
    client()
    core = client("core")
    kinds = {"gauge": core.GaugeMetricFamily,
             "counter": core.CounterMetricFamily}

    class Collector:
        def collect(self):
            for family in tell():
                made = kinds[family.kind](PREFIX + family.name, family.help,
                                          labels=family.labels)
                for labels, value in family.samples:
                    made.add_metric(labels, value)
                yield made

        def describe(self):
            """Nothing: nobody is asked before the first scrape."""
            return []

    return Collector()


def client(part=""):
    """A module of prometheus_client. MissingPackageError: it is not there."""
    try:
        return importlib.import_module(
            f"prometheus_client.{part}" if part else "prometheus_client")
    except ImportError as error:
        raise MissingPackageError("Prometheus", "prometheus_client",
                                  error) from None


def written(tell, openmetrics=False):
    """What a scrape would be answered, as bytes."""
    module = client("openmetrics.exposition" if openmetrics else "exposition")
    return module.generate_latest(registry(tell))
