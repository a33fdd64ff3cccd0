# SPDX-License-Identifier: Apache-2.0
"""The door to the simulated CUDA device, which is a package of its own.

    from stratalloc import simulate
    simulate.load("64MiB")      # before torch is imported
    import torch                # sees cuda:0 with 64 MiB

`pip install 'stratalloc[simulate]'` installs it; without it what is asked here
is a NotInstalledError that says so. Nothing here loads a library.

The hook, for whoever makes such a device: a distribution names a module in the
entry-point group `stratalloc.simulated_device`, and the module has

    load(memory, devices, mode, seed, card, profile, numbers, phantom, call_ns)
                            the devices, then torch; ValueError, RuntimeError
    for_children()          Python processes started from here on have them too
    check_model(card, profile)      ValueError if there is none
    card_memory(card, profile)      bytes that the card has, and those of them
                            that are for programs; the same
    missing()               names of its files that are not there
    label(), last_line()    a sentence for every output; what the run did
    counters(), calls(), virtual_time()     figures
    is_phantom()            whether its memory, pinned memory too, has no bytes
    before_enable(torch)    before the guard is installed, whenever enable() does
                            something: kernels that the guard is to stand before
    after_enable(torch)     once, when the core has its settings

and calls register(itself) as soon as a device is loaded. Before that none of it
is called but load, check_model, card_memory and missing. Any other name that is asked of
this module (driver, violations, ...) is the device's own.
"""

import types
from typing import Any

from stratalloc._native.core import LibraryError

_GROUP = "stratalloc.simulated_device"

_loaded = None  # the module, once it has loaded a device


class NotInstalledError(LibraryError):
    """There is no package with a simulated device."""


def installed() -> types.ModuleType | None:
    """The module that simulates, or None. Imports it, and no library."""
    import importlib.metadata

    if _loaded is not None:
        return _loaded
    for point in importlib.metadata.entry_points(group=_GROUP):
        return point.load()
    return None


def package() -> types.ModuleType:
    """The module that simulates; raises if there is none."""
    module = installed()
    if module is None:
        raise NotInstalledError(
            "stratalloc: the simulated device is the package "
            "stratalloc-cudasim, which is not installed: "
            "pip install 'stratalloc[simulate]'")
    return module


def __getattr__(name):
    if name.startswith("_"):  # Python looking at the module itself
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(package(), name)


def register(module: types.ModuleType) -> None:
    """The hook: `module` has loaded a device into this process."""
    global _loaded
    _loaded = module


def loaded() -> bool:
    """Whether this process has a simulated device."""
    return _loaded is not None


def before_enable(torch: types.ModuleType) -> None:
    """What enable() calls before it installs the guard."""
    if _loaded is not None:
        _loaded.before_enable(torch)


def after_enable(torch: types.ModuleType) -> None:
    """What enable() calls when the core has its settings."""
    if _loaded is not None:
        _loaded.after_enable(torch)


def is_phantom() -> bool:
    """Whether the memory of the simulated device has addresses and no bytes."""
    return _loaded is not None and _loaded.is_phantom()


def label() -> str:
    """One sentence for every output of a simulated run; "" if none is."""
    return _loaded.label() if _loaded is not None else ""


def last_line() -> str | None:
    """One line on what a run did and what was refused to it; or None."""
    return _loaded.last_line() if _loaded is not None else None


def counters() -> dict[str, Any]:
    """What the simulated device counted; {} if none is loaded."""
    return _loaded.counters() if _loaded is not None else {}


def virtual_time() -> dict[str, Any]:
    """Virtual seconds so far; {} unless a simulated card is used."""
    return _loaded.virtual_time() if _loaded is not None else {}
