# SPDX-License-Identifier: Apache-2.0
"""FORMATS: what a run is converted to, who writes it and who checks it. The
names are those of `convert --to` and `validate --format`.

Modules are imported when they are needed: each may need a package of its own.
"""

import importlib
import typing

from stratalloc.telemetry.regular import opened


class Format(typing.NamedTuple):
    """Names of functions: "module.function" of exports and of checks."""

    writer: str
    checker: str


FORMATS = {
    "speedscope": Format("speedscope.write", "speedscope.check"),
    "snapshot": Format("snapshot.write", "snapshot.check"),
    "snapshot-json": Format("snapshot.write_json", "snapshot.check"),
    "chrome": Format("chrome.write", "chrome.check"),
    "perfetto": Format("perfetto.write", "perfetto.check"),
    "pprof": Format("pprof.write", "pprof.check"),
    "timeline": Format("timeline.write", "timeline.check"),
    "csv": Format("rows.write_csv", "rows.check_csv"),
    "parquet": Format("rows.write_parquet", "rows.check_parquet"),
    "prometheus": Format("prometheus.write", "metrics.check"),
    "openmetrics": Format("prometheus.write_openmetrics",
                          "metrics.check_openmetrics"),
    "otel": Format("otel.write", "otel.check"),
    "tensorboard": Format("scalars.write", "scalars.check")}


def write(form, run, path):
    """Writes a file (tensorboard: a folder); raises as its module says."""
    _function("exports", FORMATS[form].writer)(run, path)


def check(form, path):
    """[text]: what is wrong with a file; what cannot be read is no finding."""
    opened(path).close()
    return _function("checks", FORMATS[form].checker)(path)


def _function(room, name):
    module, function = name.split(".")
    return getattr(importlib.import_module(
        f"stratalloc.telemetry.{room}.{module}"), function)
