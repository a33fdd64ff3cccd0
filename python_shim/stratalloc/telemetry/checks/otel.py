# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry's metrics as JSON: every field is what readers take it for,
names are instruments' names, and categories add up."""

import re

from stratalloc.telemetry.checks.findings import (Findings, is_number,
                                                  load_json)

_NAME = re.compile(r"[A-Za-z][\w./-]{0,254}", re.ASCII)
_UNITS = ("By", "s", "1")
_TIMES = ("start_time_unix_nano", "time_unix_nano")
_CUMULATIVE = 2


def check(path):
    value, wrong = load_json(path)
    if wrong:
        return wrong
    found = Findings()
    metrics = list(_metrics(found, value))
    if not metrics and not found:
        found.add("it has no metrics")
    names, sums = set(), {}
    for metric in metrics:
        name = metric["name"]
        if name in names:
            found.add(f"{name} is there twice")
        names.add(name)
        _metric(found, name, metric, sums)
    for device, (allocated, categories) in sums.items():
        if categories and allocated != sum(categories):
            found.add(f"device {device} has {allocated} bytes allocated, its "
                      f"categories add up to {sum(categories)}")
    return found.done()


def _list(found, what, value, key):
    """The dicts of a list; what is none of them is found."""
    rows = value.get(key) if isinstance(value, dict) else None
    if not isinstance(rows, list):
        found.add(f"{what} has no list {key!r}")
        return []
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            found.add(f"{key} {i} of {what} is no dict")
    return [row for row in rows if isinstance(row, dict)]


def _metrics(found, value):
    for resource in _list(found, "the file", value, "resource_metrics"):
        for scope in _list(found, "a resource", resource, "scope_metrics"):
            for metric in _list(found, "a scope", scope, "metrics"):
                name = metric.get("name")
                if not isinstance(name, str) or not _NAME.fullmatch(name):
                    found.add(f"{str(name)[:80]!r} is no name of an instrument")
                elif not isinstance(metric.get("data"), dict):
                    found.add(f"{name} has no data")
                else:
                    yield metric


def _metric(found, name, metric, sums):
    data = metric["data"]
    if metric.get("unit") not in _UNITS:
        found.add(f"{name} has the unit {str(metric.get('unit'))[:40]!r}")
    if not isinstance(metric.get("description"), str):
        found.add(f"{name} does not say what it is")
    adds_up = "is_monotonic" in data
    if adds_up and (not isinstance(data["is_monotonic"], bool)
                    or data.get("aggregation_temporality") != _CUMULATIVE):
        found.add(f"{name} adds up to no total")
    seen = set()
    for point in _list(found, name, data, "data_points"):
        attributes = point.get("attributes")
        if not isinstance(attributes, dict) or not all(
                isinstance(one, (str, int, float))
                for one in attributes.values()):
            found.add(f"{name} has no attributes that could be some")
            continue
        key = tuple(sorted((key, str(one)) for key, one in attributes.items()))
        if key in seen:
            found.add(f"{name} is there twice with the same attributes")
        seen.add(key)
        if not is_number(point.get("value")):
            found.add(f"{name} has the value {str(point.get('value'))[:40]!r}")
            continue
        _point(found, name, point, adds_up)
        _sum(name, attributes, point["value"], sums)


def _point(found, name, point, adds_up):
    if point["value"] < 0:
        found.add(f"{name} is {point['value']}")
    start, at = (point.get(key) for key in _TIMES)
    if type(at) is not int or at < 0 or (
            adds_up and (type(start) is not int or not 0 <= start <= at)):
        found.add(f"{name} is of no time that can be")
    if name.startswith("hw.") and not (point["attributes"].get("hw.id")
                                       and point["attributes"].get("hw.type")):
        found.add(f"{name} does not say of which card it is")


def _sum(name, attributes, value, sums):
    if attributes.get("stratalloc.tier") != "device":
        return
    of_device = sums.setdefault(str(attributes.get("hw.id")), [0, []])
    if name == "stratalloc.memory_allocated_bytes":
        of_device[0] = value
    elif name == "stratalloc.memory_category_bytes":
        of_device[1].append(value)
