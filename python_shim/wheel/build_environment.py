# SPDX-License-Identifier: Apache-2.0
"""The environment that a wheel is installed into, as a build backend finds it.

pip runs the backend under the interpreter that it installs into. uv and `build`
run it under that of a folder that they delete, and PEP 517 does not say where the
wheel will go: their process is asked. Standard library only.
"""

import os
import subprocess
import sys
import tempfile


def pythons() -> list[str]:
    """Interpreters to look for torch in, the likeliest first; empty where
    nothing says which."""
    caller = os.getppid()
    if _is_uv(caller):
        return _python_of_uv(caller)
    found = [] if _is_of_build() else [sys.executable]
    for variables in (os.environ, _environment_of(caller)):
        folder = variables.get("VIRTUAL_ENV", "")
        python = os.path.join(folder, "bin", "python")
        if folder and python not in found and os.path.exists(python):
            found.append(python)
    return found


def _is_of_build() -> bool:
    """Whether this interpreter is of an environment that `build` deletes."""
    return (os.path.basename(sys.prefix).startswith("build-env-") and
            os.path.dirname(os.path.realpath(sys.prefix)) ==
            os.path.realpath(tempfile.gettempdir()))


def _is_uv(process: int) -> bool:
    """uv names its program to what it starts, which may start others."""
    try:
        return os.path.samefile(f"/proc/{process}/exe", os.environ["UV"])
    except (KeyError, OSError):
        return False


def _python_of_uv(process: int) -> list[str]:
    """The interpreter that this uv installs into, as uv itself finds it: by
    its --python, its variables and the folders above its own."""
    command = [os.environ["UV"], "python", "find",
               *_request(_words_of(process, "cmdline"))]
    try:
        done = subprocess.run(
            command, cwd=f"/proc/{process}/cwd", env=_environment_of(process),
            text=True, check=False, stdin=subprocess.DEVNULL,
            capture_output=True)
    except OSError:
        return []
    return [] if done.returncode else done.stdout.split("\n")[:1]


def _request(words: list[str]) -> list[str]:
    """Options of a command line of uv that choose the interpreter."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""]):
        if word in ("--python", "-p"):
            found.append(following)
        elif word.startswith("--python="):
            found.append(word.removeprefix("--python="))
        elif word.startswith("-p"):
            found.append(word.removeprefix("-p").removeprefix("="))
        elif word == "--system":
            found.append(word)
    return found


def _environment_of(process: int) -> dict[str, str]:
    pairs = _words_of(process, "environ")
    return {name: value for name, _, value in (p.partition("=") for p in pairs)
            if name}


def _words_of(process: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:
            return file.read().decode(errors="surrogateescape").split("\0")
    except OSError:
        return []
