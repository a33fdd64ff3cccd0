#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies wheels under the tag of the oldest systems that they run on.

    platform_tag.py FOLDER WHEEL ...

A build has the tag linux_x86_64, which no index takes. This tool reads the
versions of glibc's and libstdc++'s symbols that the libraries of a wheel ask
for, as auditwheel does, and names the copy manylinux_2_N after them. A wheel
for any platform is copied as it is. Prints the paths. Standard library, and
readelf of binutils.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

try:
    from python_shim.wheel import build_wheel
except ImportError:  # run as a program
    import build_wheel

# The newest symbols of libstdc++ and of its ABI on systems with glibc 2.N, by
# auditwheel's policies: N, GLIBCXX_3.4.x, CXXABI_1.3.x.
_POLICIES = (
    (17, 19, 7), (24, 22, 10), (26, 22, 10), (27, 24, 11), (28, 24, 11),
    (31, 28, 12), (34, 29, 13), (35, 30, 13), (38, 30, 13), (39, 33, 15),
)
_VERSION = re.compile(r"Name: (GLIBC_2|GLIBCXX_3\.4|CXXABI_1\.3)\.(\d+)\b")


class TagError(Exception):
    """A wheel fits no tag: why, for the user."""


def needs(library: str) -> dict[str, int]:
    """The newest version of each family that an ELF file asks for."""
    done = subprocess.run(
        ["readelf", "--version-info", "--wide", library], check=True,
        capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    found: dict[str, int] = {}
    for family, number in _VERSION.findall(done.stdout):
        found[family] = max(found.get(family, 0), int(number))
    return found


def glibc(found: dict[str, int]) -> int:
    """The N of the oldest glibc 2.N whose systems have all of it."""
    for number, library, abi in _POLICIES:
        if (found.get("GLIBC_2", 0) <= number
                and found.get("GLIBCXX_3.4", 0) <= library
                and found.get("CXXABI_1.3", 0) <= abi):
            return number
    raise TagError(f"no policy of manylinux has {found}")


def tagged(wheel: str, folder: str) -> str:
    """The path of the copy in `folder`."""
    name = os.path.basename(wheel)
    if not re.search(r"-linux_\w+\.whl$", name):
        return shutil.copyfile(wheel, os.path.join(folder, name))
    with zipfile.ZipFile(wheel) as archive:
        files = {path: archive.read(path) for path in archive.namelist()}
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as work:
        library = os.path.join(work, "library")
        for path, data in files.items():
            if data.startswith(b"\x7fELF"):
                with open(library, "wb") as stream:
                    stream.write(data)
                for family, number in needs(library).items():
                    found[family] = max(found.get(family, 0), number)
    tag = f"manylinux_2_{glibc(found)}_"
    (info,) = [path for path in files if path.endswith(".dist-info/WHEEL")]
    files[info] = files[info].replace(b"-linux_", f"-{tag}".encode())
    record = info.removesuffix("WHEEL") + "RECORD"
    files[record] = build_wheel.record(files, record)
    out = os.path.join(folder, name.replace("-linux_", f"-{tag}"))
    build_wheel.write(out, files)
    return out


def main(argv: list[str]) -> int:
    if len(argv) < 2:
        print("usage: platform_tag.py FOLDER WHEEL ...", file=sys.stderr)
        return 2
    os.makedirs(argv[0], exist_ok=True)
    try:
        for wheel in argv[1:]:
            print(tagged(wheel, argv[0]))
    except (TagError, OSError) as error:
        print(f"platform_tag.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
