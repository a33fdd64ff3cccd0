# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: a run's metrics as instruments of a meter.

Totals of a device have the semantic conventions' names (hw.gpu.memory.*, with
hw.id); what those do not know is named stratalloc.*. Needs opentelemetry-sdk
for export(), and only its API for observe().
"""

import json

from stratalloc.telemetry.errors import MissingPackageError
from stratalloc.telemetry.exports import metrics
from stratalloc.telemetry.exports.target import target

# What the conventions have a name for.
KNOWN = {"memory_capacity_bytes": "hw.gpu.memory.limit",
          "memory_reserved_bytes": "hw.gpu.memory.usage"}
_UNITS = {"bytes": "By", "seconds": "s", "ratio": "1"}


def observe(run, meter, modules=0):
    """Makes observable instruments of `meter` that tell the run's end."""
    from opentelemetry.metrics import Observation

    for family in metrics.families(run, modules):
        observations = [
            Observation(value, _attributes(family, labels))
            for labels, value in family.samples]
        make = (meter.create_observable_counter if family.kind == "counter"
                else meter.create_observable_up_down_counter
                if family.name.endswith("bytes")
                else meter.create_observable_gauge)
        make(KNOWN.get(family.name, "stratalloc." + family.name),
             callbacks=[lambda _, found=observations: found],
             unit=_UNITS.get(family.name.rpartition("_")[2], "1"),
             description=family.help)


def _attributes(family, labels):
    found = {f"stratalloc.{key}" if key != "device" else "hw.id": value
             for key, value in zip(family.labels, labels)}
    if "device" in family.labels:
        found["hw.type"] = "gpu"
    return found


def write(run, path, modules=0):
    """What an exporter would send, as JSON, at the time at which the run ended.

    Raises:
      MissingPackageError: opentelemetry-sdk is not installed.
    """
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        raise MissingPackageError("OpenTelemetry", "opentelemetry-sdk",
                                  error) from None
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], Resource({"service.name": "stratalloc"}),
                             shutdown_on_exit=False)
    observe(run, provider.get_meter("stratalloc"), modules)
    data = json.loads(reader.get_metrics_data().to_json())
    provider.shutdown()
    for point in _points(data):
        point["time_unix_nano"] = run.started + run.duration
        if point["start_time_unix_nano"] is not None:  # of what adds up
            point["start_time_unix_nano"] = run.started
    with target(path) as file:
        file.write(json.dumps(data, separators=(",", ":"),
                              allow_nan=False).encode())


def _points(data):
    for resource in data["resource_metrics"]:
        for scope in resource["scope_metrics"]:
            for metric in scope["metrics"]:
                yield from metric["data"]["data_points"]
