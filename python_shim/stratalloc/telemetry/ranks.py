# SPDX-License-Identifier: Apache-2.0
"""merged(): the metrics of several processes as one exposition, by rank.

A source is a text file (write_metrics) or a URL (serve_metrics). Each of its
samples has a label `rank`: its own, or what the source was given as
`RANK=SOURCE`. Two sources never tell the same series. Needs prometheus_client.
"""

import re
import urllib.error
import urllib.request

from stratalloc.telemetry.errors import TelemetryError
from stratalloc.telemetry.exports import exposition
from stratalloc.telemetry.regular import opened

_MOST = 64 << 20  # bytes of a source
_SECONDS = 10  # that a server may take
_URL = re.compile(r"https?://", re.IGNORECASE)
# "3=PATH", "trainer-0=http://…"; a path with = in it is written as ./a=b
_GIVEN = re.compile(r"([\w.-]{1,64})=(.+)", re.ASCII | re.DOTALL)


def merged(sources):
    """[prometheus_client Metric], in the order in which they are first told.

    Raises:
      TelemetryError: a source cannot be read, is no exposition, or tells what
        another one tells.
      OSError: a file cannot be opened.
      MissingPackageError: prometheus_client is not installed.
    """
    core = exposition.client("core")
    found, told = {}, {}
    for source in sources:
        rank, place = _given(source)
        for family in _families(place):
            one = found.setdefault(family.name, core.Metric(
                family.name, family.documentation, family.type))
            if one.type != family.type:
                raise TelemetryError(
                    f"{place} has {family.name} as {family.type}, and a source "
                    f"before it as {one.type}: they are of different programs "
                    "or versions; give those of one")
            for sample in family.samples:
                labels = dict(sample.labels)
                if rank is not None:
                    labels["rank"] = rank
                key = sample.name, tuple(sorted(labels.items()))
                if key in told:
                    raise TelemetryError(_twice(told[key], place, labels))
                told[key] = place
                one.add_sample(sample.name, labels, sample.value,
                               sample.timestamp)
    return list(found.values())


def text(metrics):
    """An exposition of what merged() found, as bytes."""
    class Collector:
        def collect(self):
            return metrics

    registry = exposition.client().CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return exposition.client("exposition").generate_latest(registry)


def _given(source):
    match = _GIVEN.fullmatch(source)
    return match.groups() if match else (None, source)


def _twice(first, second, labels):
    whose = (f"of rank {labels['rank']}" if "rank" in labels else
             "of no rank: RANK was not set where they came from")
    return (f"{first} and {second} both tell {whose}; say whose they are, as in "
            f"`stratalloc metrics 0={first} 1={second}`")


def _families(place):
    parser = exposition.client("parser")
    try:
        return list(parser.text_string_to_metric_families(
            _read(place).decode("utf-8")))
    except TelemetryError:
        raise
    except (ValueError, KeyError, IndexError) as error:
        raise TelemetryError(
            f"{place} is no exposition of metrics: {str(error)[:200]}; give a "
            "file of stratalloc.write_metrics(), or the url of "
            "stratalloc.serve_metrics()") from None


def _read(place):
    if _URL.match(place):
        raw = _fetched(place)
    else:
        with opened(place) as file:
            raw = file.read(_MOST + 1)
    if len(raw) > _MOST:
        raise TelemetryError(f"{place} has more than {_MOST >> 20} MiB, which "
                             "no metrics of one process have")
    return raw


def _fetched(url):
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            return answer.read(_MOST + 1)
    except (OSError, ValueError) as error:  # HTTPError is one
        reason = getattr(error, "reason", None) or error
        raise TelemetryError(
            f"{url} does not answer: {reason}; does the process still run, and "
            "is it stratalloc.serve_metrics()'s url?") from None
