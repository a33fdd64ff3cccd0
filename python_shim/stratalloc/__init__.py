# SPDX-License-Identifier: Apache-2.0
"""stratalloc: a CUDA memory allocator for PyTorch that tiers parameters.

Cold parameter memory leaves the GPU for pinned host memory or an NVMe file
and comes back at the same address before it is used:

    import stratalloc
    stratalloc.enable(host_budget="8GiB")   # before the first CUDA use

Importing this module prints nothing, imports neither torch nor a shared
object and works without a GPU; everything below is loaded when first used.
"""

import importlib as _importlib
import typing as _typing

from stratalloc import _autoload

_autoload.note_initialization()

# Name -> module that holds it. A name that is not built yet is not here.
_NAMES = {
    "Config": "settings",
    "config": "_native.state",
    "enable": "_signatures",
    "disable": "_disable",
    "is_enabled": "_native.state",
    "allocator": "_signatures",
    "library": "_signatures",
    "evict": "_tiering.tiers",
    "restore": "_tiering.tiers",
    "residency": "_reports.residency",
    "pin": "_tiering.pins",
    "unpin": "_tiering.pins",
    "compile_per_layer": "_hooks.compiled",
    "stats": "_reports.reports",
    "memory_summary": "_reports.reports",
    "report": "_reports.reports",
    "holders": "_reports.holders",
    "peak": "_reports.holders",
    "reset_peak": "_reports.holders",
    "mark": "_reports.diff",
    "diff": "_reports.diff",
    "leaks": "_reports.leaks",
    "fragmentation": "_reports.fragmentation",
    "explain": "_reports.explanation",
    "trace": "_recording.trace",
    "dump": "_recording.trace",
    "telemetry_level": "_recording.trace",
    "serve_metrics": "_metrics.server",
    "write_metrics": "_metrics.server",
    "metrics_collector": "_metrics.server",
    "limit": "_ownership.limits",
    "watch": "_ownership.modules",
    "annotate": "_ownership.modules",
    "scope": "scopes",
    "on_oom": "_oom",
    # What these return, and what it consists of.
    "Residency": "_reports.residency",
    "Stats": "_reports.stats",
    "Report": "_reports.reports",
    "Holders": "_reports.holders",
    "Holder": "_reports.holders",
    "Mark": "_reports.diff",
    "Growth": "_reports.diff",
    "Change": "_reports.diff",
    "Leaks": "_reports.leaks",
    "Leak": "_reports.leaks",
    "Fragmentation": "_reports.fragmentation",
    "Hole": "_reports.fragmentation",
    "Explanation": "_reports.explanation",
    "Trace": "_recording.trace",
    "Run": "telemetry.model",
    "MetricsServer": "_metrics.server",
    "Limit": "_ownership.limits",
    "PreviousLevel": "_recording.trace",
    "OomCallback": "_oom",
    "OutOfMemoryReport": "_oom.autopsy",
    "Verdict": "_oom.verdict",
    "Suggestion": "_oom.suggestions",
    # What they raise.
    "NotEnabledError": "_native.errors",
    "UnsupportedTorchError": "_native.errors",
    "LibraryError": "_native.core",
    "MissingPackageError": "telemetry.errors",
    "__version__": "_version",  # written by the build, from bazel/version.bzl
}

# Modules that programs use, attributes without an import of their own.
_MODULES = ("compat", "settings", "simulate", "telemetry")

__all__ = sorted(name for name in _NAMES if name != "__version__")


# Type checkers and editors run nothing: the same names once more, for them.
# __getattr__ would make every name one that exists.
if _typing.TYPE_CHECKING:
    from stratalloc import compat as compat
    from stratalloc import settings as settings
    from stratalloc import simulate as simulate
    from stratalloc import telemetry as telemetry
    from stratalloc._disable import disable as disable
    from stratalloc._hooks.compiled import (
        compile_per_layer as compile_per_layer,
    )
    from stratalloc._metrics.server import (
        metrics_collector as metrics_collector,
        MetricsServer as MetricsServer,
        serve_metrics as serve_metrics,
        write_metrics as write_metrics,
    )
    from stratalloc._native.core import LibraryError as LibraryError
    from stratalloc._native.errors import (
        NotEnabledError as NotEnabledError,
        UnsupportedTorchError as UnsupportedTorchError,
    )
    from stratalloc._native.state import (
        config as config,
        is_enabled as is_enabled,
    )
    from stratalloc._oom import OomCallback as OomCallback, on_oom as on_oom
    from stratalloc._oom.autopsy import OutOfMemoryReport as OutOfMemoryReport
    from stratalloc._oom.suggestions import Suggestion as Suggestion
    from stratalloc._oom.verdict import Verdict as Verdict
    from stratalloc._ownership.limits import limit as limit, Limit as Limit
    from stratalloc._ownership.modules import (
        annotate as annotate,
        watch as watch,
    )
    from stratalloc._recording.trace import (
        dump as dump,
        PreviousLevel as PreviousLevel,
        telemetry_level as telemetry_level,
        trace as trace,
        Trace as Trace,
    )
    from stratalloc._reports.diff import (
        Change as Change,
        diff as diff,
        Growth as Growth,
        mark as mark,
        Mark as Mark,
    )
    from stratalloc._reports.explanation import (
        explain as explain,
        Explanation as Explanation,
    )
    from stratalloc._reports.fragmentation import (
        fragmentation as fragmentation,
        Fragmentation as Fragmentation,
        Hole as Hole,
    )
    from stratalloc._reports.holders import (
        Holder as Holder,
        holders as holders,
        Holders as Holders,
        peak as peak,
        reset_peak as reset_peak,
    )
    from stratalloc._reports.leaks import (
        Leak as Leak,
        leaks as leaks,
        Leaks as Leaks,
    )
    from stratalloc._reports.reports import (
        memory_summary as memory_summary,
        report as report,
        Report as Report,
        stats as stats,
    )
    from stratalloc._reports.residency import (
        residency as residency,
        Residency as Residency,
    )
    from stratalloc._reports.stats import Stats as Stats
    from stratalloc._signatures import (
        allocator as allocator,
        enable as enable,
        library as library,
    )
    from stratalloc._tiering.pins import pin as pin, unpin as unpin
    from stratalloc._tiering.tiers import evict as evict, restore as restore
    from stratalloc.scopes import scope as scope
    from stratalloc.settings import Config as Config
    from stratalloc.telemetry.errors import (
        MissingPackageError as MissingPackageError,
    )
    from stratalloc.telemetry.model import Run as Run

    __version__: str
else:
    def __getattr__(name):
        if name in _MODULES:
            return _importlib.import_module("stratalloc." + name)
        module = _NAMES.get(name)
        if module is None:
            raise AttributeError(
                f"module 'stratalloc' has no attribute {name!r}")
        value = getattr(_importlib.import_module("stratalloc." + module), name)
        globals()[name] = value
        return value


def load_ipython_extension(ipython: _typing.Any) -> None:
    """`%load_ext stratalloc` adds %gpumem and %%gpumem to this shell."""
    from stratalloc._notebook import magics as _magics

    _magics.load(ipython)


def unload_ipython_extension(ipython: _typing.Any) -> None:
    """Removes both magics from this shell."""
    from stratalloc._notebook import magics as _magics

    _magics.unload(ipython)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULES})
