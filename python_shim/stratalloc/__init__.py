# SPDX-License-Identifier: Apache-2.0
"""stratalloc: a CUDA memory allocator for PyTorch that tiers parameters.

Cold parameter memory leaves the GPU for pinned host memory or an NVMe file
and comes back at the same address before it is used:

    import stratalloc
    stratalloc.enable(host_budget="8GiB")   # before the first CUDA use

Importing this module prints nothing, imports neither torch nor a shared
object and works without a GPU; everything below is loaded when first used.
"""

import importlib

from stratalloc._hooks import witness as _witness

_witness.install()

# Name -> module that holds it. A name that is not built yet is not here.
_NAMES = {
    "Config": "settings",
    "config": "_native.state",
    "enable": "_enable",
    "is_enabled": "_native.state",
    "NotEnabledError": "_native.errors",
    "UnsupportedTorchError": "_native.errors",
    "allocator": "_enable",
    "library": "_enable",
    "evict": "_tiering.tiers",
    "restore": "_tiering.tiers",
    "pin": "_tiering.pins",
    "unpin": "_tiering.pins",
    "compile_per_layer": "_hooks.compiled",
    "stats": "_reports.reports",
    "memory_summary": "_reports.reports",
    "report": "_reports.reports",
    "holders": "_reports.holders",
    "peak": "_reports.holders",
    "mark": "_reports.diff",
    "diff": "_reports.diff",
    "trace": "_recording.trace",
    "dump": "_recording.trace",
    "telemetry_level": "_recording.trace",
    "leaks": "_reports.leaks",
    "serve_metrics": "_metrics.server",
    "write_metrics": "_metrics.server",
    "metrics_collector": "_metrics.server",
    "limit": "_ownership.limits",
    "fragmentation": "_reports.fragmentation",
    "explain": "_reports.explanation",
    "on_oom": "_oom",
    "OutOfMemoryReport": "_oom.autopsy",
    "watch": "_ownership.modules",
    "annotate": "_ownership.modules",
    "scope": "scopes",
    "__version__": "_version",  # written by the build, from bazel/version.bzl
}

# Modules that programs use, attributes without an import of their own.
_MODULES = ("compat", "settings", "simulate", "telemetry")

__all__ = sorted(name for name in _NAMES if name != "__version__")


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module("stratalloc." + name)
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'stratalloc' has no attribute {name!r}")
    value = getattr(importlib.import_module("stratalloc." + module), name)
    globals()[name] = value
    return value


def load_ipython_extension(ipython):
    """`%load_ext stratalloc` adds %gpumem and %%gpumem to this shell."""
    from stratalloc._notebook import magics as _magics

    _magics.load(ipython)


def unload_ipython_extension(ipython):
    from stratalloc._notebook import magics as _magics

    _magics.unload(ipython)


def __dir__():
    return sorted({*globals(), *_NAMES, *_MODULES})
