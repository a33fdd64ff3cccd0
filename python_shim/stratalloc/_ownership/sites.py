# SPDX-License-Identifier: Apache-2.0
"""Sites: the lines of user code that allocated what lives.

From the telemetry level `callsites` on mallocs are sampled by bytes, and a
sampled block keeps its line until it is freed (accounting/README.md, "Sites").
At `full` each one is, and keeps its whole stack; its line is told here.
Here stands which directories are libraries; everything else is user code. That
is decided by where a file lies: the standard library, where this interpreter
installs packages, any directory on the path into which packages were installed
(it has their .dist-info), and torch and this package wherever they are. What a
user edits in place (`pip install -e`) lies elsewhere, and so is the user's.
"""

import atexit
import dataclasses
import functools
import os
import site
import sys
import sysconfig

from stratalloc._native import core as _core

LEVELS = ("callsites", "full")  # of `telemetry`, that record sites
NOT_SAMPLED = "(not sampled)"
NOT_RECORDED = ("(sites are not recorded: enable(telemetry=\"callsites\") "
                "records them)")


def install(torch):
    """Sampled mallocs find their line from now on, until Python ends."""
    from stratalloc._native import _frames

    _frames.begin(libraries(torch), _core.PACKAGE)
    if not _installed:
        # Before the interpreter is finalised, when nobody can have the GIL.
        atexit.register(_frames.end)
        _installed.append(os.getcwd())


_installed = []  # the directory that names are told from


def libraries(torch):
    """Directories whose code is no user's, as a stack may spell them."""
    found = {_core.PACKAGE, *map(os.path.abspath, torch.__path__),
             *site.getsitepackages(), site.getusersitepackages()}
    for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"):
        found.add(sysconfig.get_path(name))
    found.update(entry for entry in map(os.path.abspath, sys.path)
                 if entry not in _own() and _has_installed_packages(entry))
    found |= {os.path.realpath(each) for each in found if each}
    return sorted(each.rstrip(os.sep) for each in found
                  if each and each.rstrip(os.sep))


def _own():
    """Where the program lies, whatever was installed beside it."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return {os.getcwd(), *([os.path.dirname(os.path.abspath(main))]
                           if main else [])}


def _has_installed_packages(directory):
    try:
        return any(name.endswith(".dist-info")
                   for name in os.listdir(directory))
    except OSError:
        return False  # an archive, or not there


def on():
    """Are sites recorded?"""
    return _core.loaded() and _core.sites(0)["recorded"]


@dataclasses.dataclass(frozen=True)
class Sites:
    """What was allocated where, at one moment; `rows` as report()'s layers.

    They add up to what is live, with one of NOT_SAMPLED. `refused`: how often a
    line was counted as "(other sites)", since no more are told apart.
    """

    rows: list
    refused: int


def look(device):
    """Sites of a device; None where they are not recorded."""
    values = _core.sites(device)
    if not values["recorded"]:
        return None
    rows = values.get("rows", [])
    for row in rows:
        row["owner"] = _shown(row["owner"])
    return Sites(rows, values.get("refused", 0))


@functools.lru_cache(maxsize=4096)
def _shown(name):
    """Of a file below the directory where the program began, the rest."""
    return name.removeprefix(os.path.join(_installed[0], ""))
