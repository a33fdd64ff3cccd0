# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text and OpenMetrics: they parse, and names follow the rules."""

import importlib

from stratalloc.telemetry.checks.findings import MOST, Findings
from stratalloc.telemetry.errors import MissingPackageError


def check(path):
    found = _check(path, "prometheus_client.parser")
    with open(path, "rb") as file:
        for line in file:  # its parser adds what counters lack
            words = line.split()
            if (words[:2] == [b"#", b"TYPE"] and words[3:] == [b"counter"]
                    and not words[2].endswith(b"_total")):
                name = words[2][:80].decode("ascii", "replace")
                found.append(f"the counter {name} does not end in _total")
    return found[:MOST]


def check_openmetrics(path):
    return _check(path, "prometheus_client.openmetrics.parser")


def _check(path, module):
    try:
        parser = importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError("Prometheus", "prometheus_client",
                                  error) from None
    with open(path, "rb") as file:
        raw = file.read()
    found = Findings()
    try:
        families = list(parser.text_string_to_metric_families(
            raw.decode("utf-8")))
    except Exception as error:  # the parser raises what it likes
        return [f"it does not parse: {type(error).__name__}: "
                f"{str(error)[:200]}"]
    if not raw.endswith(b"\n"):
        found.add("its last line has no end: it is cut off")
    if not families:
        found.add("it has no metrics")
    seen = set()
    for family in families:
        _names(found, family)
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            if key in seen:
                found.add(f"{sample.name} is there twice with the same labels")
            seen.add(key)
            if family.type == "counter" and not sample.value >= 0:
                found.add(f"{sample.name} is {sample.value}")
    return found.done()


def _names(found, family):
    if not family.documentation:
        found.add(f"{family.name} does not say what it is")
    if family.type != "counter" and family.name.endswith("_total"):
        found.add(f"{family.name} ends in _total and is no counter")
    for unit in ("kb", "mb", "mib", "gib", "milliseconds", "percent"):
        if family.name.endswith("_" + unit):
            found.add(f"{family.name} is in {unit}, no base unit")
