# SPDX-License-Identifier: Apache-2.0
"""All that this room uses of the package: its only import of the package.

A module or a name is loaded when a compat module first imports it from here, so
importing one compat module loads what that one uses.
"""

import importlib

_MODULES = {
    "_enable": "stratalloc._enable",
    "core": "stratalloc._native.core",
    "gpus": "stratalloc._native.gpus",
    "state": "stratalloc._native.state",
    "storages": "stratalloc._native.storages",
    "simulate": "stratalloc.simulate",
    "ruled": "stratalloc._tiering.ruled",
    "rules": "stratalloc._tiering.rules",
    "spill": "stratalloc._tiering.spill",
    "tiers": "stratalloc._tiering.tiers",
    "modules": "stratalloc._ownership.modules",
    "sites": "stratalloc._ownership.sites",
    "trace": "stratalloc._recording.trace",
    "import_torch": "stratalloc.telemetry.import_torch",
    "lifetimes": "stratalloc.telemetry.lifetimes",
    "model": "stratalloc.telemetry.model",
    "owners": "stratalloc.telemetry.analysis.owners",
    "replay": "stratalloc.telemetry.replay",
    "scalars": "stratalloc.telemetry.exports.scalars",
    "speedscope": "stratalloc.telemetry.exports.speedscope",
    "timeline": "stratalloc.telemetry.exports.timeline",
}
_NAMES = {
    "TIERS": "stratalloc._native.device_metrics",
    "LIFETIME_STAYING": "stratalloc._native.stack",
    "format_size": "stratalloc.sizes",
    "AwaitedModule": "stratalloc._hooks.import_hook",
    "Replaced": "stratalloc._hooks.patching",
    "Page": "stratalloc._rendering.page",
    "Row": "stratalloc._rendering.table",
    "Table": "stratalloc._rendering.table",
    "counted": "stratalloc._rendering.table",
    "serve_metrics": "stratalloc._metrics.server",
    "Kind": "stratalloc.telemetry.model",
    "layers": "stratalloc.telemetry.exports.layers",
    "notes": "stratalloc.telemetry.exports.notes",
    "verdict": "stratalloc.telemetry.analysis.verdict",
}


def __getattr__(name):
    if name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
