#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Headers of a release of PyTorch, taken out of its wheel.

    headers.py VERSION FOLDER

Leaves FOLDER/VERSION/torch with `include` and `version.py`: what TORCH_HEADERS
names. pip downloads the wheel of half a gigabyte from the index of its settings;
the wheel is deleted afterwards. A release that is there already costs nothing.
Errors: one line on stderr and exit code 1; FOLDER/VERSION is then not there.
Standard library only.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

# Headers are the same in the wheels of every Python; each release has this one.
_PYTHON = "3.11"
_PLATFORM = "manylinux_2_28_x86_64"
_TAKEN = re.compile(r"torch/(version\.py$|include/)")


class HeadersError(Exception):
    """The headers cannot be had: why, for the user."""


def fetch(version: str, folder: str) -> str:
    """The path of TORCH_HEADERS for a release; downloads it if it is missing."""
    target = os.path.join(folder, version)
    if os.path.exists(target):
        return target
    os.makedirs(folder, exist_ok=True)
    # Beside the target: a rename is atomic in one file system only.
    work = tempfile.mkdtemp(prefix=f".{version}-", dir=folder)
    try:
        made = os.path.join(work, "headers")
        _extract(_download(version, work), version, made)
        try:
            os.rename(made, target)
        except OSError:
            if not os.path.exists(target):  # by another process meanwhile
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _download(version: str, folder: str) -> str:
    """The path of the wheel."""
    print(f"downloading torch {version}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-input",
         "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
         "--only-binary=:all:", "--implementation", "cp", "--python-version",
         _PYTHON, "--platform", _PLATFORM, "--dest", folder,
         f"torch=={version}"],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        check=False)
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.strip().splitlines() or ["no wheel"]
        raise HeadersError(f"pip download of torch {version} failed: "
                           + lines[-1].removeprefix("ERROR: "))
    return os.path.join(folder, wheels[0])


def _extract(wheel: str, version: str, folder: str) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if _TAKEN.match(name)]
            archive.extractall(folder, names)
    except zipfile.BadZipFile as error:
        raise HeadersError(
            f"{os.path.basename(wheel)} is not a wheel: {error}") from None
    for part in ("include", "version.py"):
        if not os.path.exists(os.path.join(folder, "torch", part)):
            raise HeadersError(f"the wheel of torch {version} has no "
                               f"torch/{part}")


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: headers.py VERSION FOLDER", file=sys.stderr)
        return 2
    try:
        print(fetch(*argv))
    except (HeadersError, OSError) as error:
        print(f"headers.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
