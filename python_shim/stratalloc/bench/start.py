# SPDX-License-Identifier: Apache-2.0
"""Cost of the entry point for a program that does not opt in.

An interpreter's start runs nothing of the package. `import torch` looks for entry
points in any case, imports that of the package and calls it; it reads STRATALLOC
and returns. Measured are this import and the call, in a process each.
"""

import json
import subprocess
import sys

from stratalloc._terminal import command as _command
from stratalloc.demo.phases import package_environment

_MOST_ROUNDS = 5  # each imports torch anew
_GOAL = 1_000_000  # ns: 1000 µs of an `import torch` of seconds
_PROGRAM = """
import json
import sys
import time

began = time.perf_counter_ns()
import torch
imported = time.perf_counter_ns()
assert not [name for name in sys.modules if "stratalloc" in name]
from stratalloc import _autoload
_autoload.autoload()
print(json.dumps({"ours": time.perf_counter_ns() - imported,
                  "torch": imported - began}))
"""


def line(entry, rounds):
    """One line of the table; `entry` makes it."""
    answers = [_ask() for _ in range(min(rounds, _MOST_ROUNDS))]
    return entry("import torch, STRATALLOC unset",
                 [answer["ours"] for answer in answers],
                 [answer["torch"] for answer in answers], "torch itself",
                 goal=_GOAL)


def _ask():
    environment = package_environment()
    environment.pop("STRATALLOC", None)
    # Installers compile a package; else the first round does.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # The program calls the entry point itself, to measure it.
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment,
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise _command.CannotRunError(
            "stratalloc: the benchmark of `import torch` ended with code "
            f"{done.returncode}; its reason is above")
    return json.loads(done.stdout)
