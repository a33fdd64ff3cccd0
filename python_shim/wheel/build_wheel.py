# SPDX-License-Identifier: Apache-2.0
"""Writes a wheel, bit for bit the same for the same files; or unpacks some.

    build_wheel.py build OUT --name N --version V --tag T [...] --file FILE=PATH ...
    build_wheel.py unpack FOLDER WHEEL ...

Standard library only: it runs before anything is installed.
"""

import argparse
import base64
import hashlib
import os
import re
import zipfile
from collections.abc import Iterable

# The oldest date a zip file can hold: archives do not depend on the clock.
_DATE = (1980, 1, 1, 0, 0, 0)

# Links of Markdown to a file of this repository, not to an address or within a page.
_RELATIVE_LINK = re.compile(r"(?<!\w)\[([^]\[]*)\]\((?![a-z][a-z0-9+.-]*:|#)([^()\s]+)\)")

# What the distributions of this repository have in common.
_AUTHOR = "The stratalloc maintainers"
_CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Environment :: GPU :: NVIDIA CUDA",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
)


def _metadata(args: argparse.Namespace, licenses: list[str],
              typed: bool) -> str:
    """The core metadata; `licenses`: files below licenses/."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {args.name}",
        f"Version: {args.version}",
        f"Summary: {args.summary}",
        f"Author: {_AUTHOR}",
        "License-Expression: Apache-2.0",
    ]
    lines += [f"License-File: {name}" for name in licenses]
    if args.keywords:
        lines.append("Keywords: " + ",".join(args.keywords))
    lines += [f"Classifier: {classifier}" for classifier in _CLASSIFIERS]
    if typed:
        lines.append("Classifier: Typing :: Typed")
    lines.append("Requires-Python: >=3.10")
    lines += [f"Requires-Dist: {requirement}" for requirement in args.requires]
    pairs = [pair.partition(":")[::2] for pair in args.extras]
    for extra in dict.fromkeys(extra for extra, _ in pairs):
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {requirement} ; extra == '{extra}'"
                  for of, requirement in pairs if of == extra]
    if args.readme:
        lines.append("Description-Content-Type: text/markdown")
        with open(args.readme, encoding="utf-8") as readme:
            lines += ["", _description(readme.read())]
    return "\n".join(lines) + "\n"


def _description(readme: str) -> str:
    """The text as the page of an index shows it: files are named, not linked."""
    return _RELATIVE_LINK.sub(
        lambda link: link[1] if link[1] == link[2] else f"{link[1]} ({link[2]})",
        readme)


def _check_tag(tag: str, names: Iterable[str]) -> None:
    """Refuses a tag by which interpreters install extensions they cannot load."""
    for name in names:
        if name.endswith(".abi3.so") and tag.split("-")[1] != "abi3":
            raise SystemExit(f"{name} wants a tag of abi3, not {tag}")


def _entry_points(points: list[str]) -> str:
    groups: dict[str, list[str]] = {}
    for point in points:
        group, _, value = point.partition(":")
        name, _, target = value.partition("=")
        groups.setdefault(group, []).append(f"{name} = {target}")
    return "\n\n".join(
        f"[{group}]\n" + "\n".join(lines) for group, lines in groups.items()
    ) + "\n"


def contents(args: argparse.Namespace) -> dict[str, bytes]:
    """Name in the archive to bytes, RECORD last as the format wants it."""
    # As the format escapes a dash, which it separates by.
    info = f"{args.name.replace('-', '_')}-{args.version}.dist-info"
    files: dict[str, bytes] = {}
    for pair in args.files:
        path, _, name = pair.partition("=")
        if name in files:
            raise SystemExit(f"two files would be called {name}")
        with open(path, "rb") as stream:
            files[name] = stream.read()
    files = dict(sorted(files.items()))
    _check_tag(args.tag, files)
    typed = any(name.endswith("/py.typed") for name in files)
    licenses = []
    for path, name in ((args.license, "LICENSE"), (args.notices, "NOTICES")):
        if path:
            with open(path, "rb") as stream:
                files[f"{info}/licenses/{name}"] = stream.read()
            licenses.append(name)
    files[f"{info}/METADATA"] = _metadata(args, licenses, typed).encode()
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: stratalloc\n"
        f"Root-Is-Purelib: false\nTag: {args.tag}\n"
    ).encode()
    if args.entry_points:
        files[f"{info}/entry_points.txt"] = _entry_points(
            args.entry_points
        ).encode()
    files[f"{info}/RECORD"] = record(files, f"{info}/RECORD")
    return files


def record(files: dict[str, bytes], name: str) -> bytes:
    """The list of all files, which is called `name` and has no hash itself."""
    lines = ""
    for path, data in files.items():
        if path != name:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            lines += f"{path},sha256={digest.decode().rstrip('=')},{len(data)}\n"
    return (lines + f"{name},,\n").encode()


def write(out: str, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if ".so" in os.path.basename(name) else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data)


def build(args: argparse.Namespace) -> None:
    write(args.out, contents(args))


def unpack(args: argparse.Namespace) -> None:
    for wheel in args.wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(args.folder)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    builder = verbs.add_parser("build")
    builder.set_defaults(run=build)
    builder.add_argument("out")
    builder.add_argument("--name", required=True)
    builder.add_argument("--version", required=True)
    builder.add_argument("--tag", required=True)
    builder.add_argument("--summary", required=True)
    builder.add_argument(
        "--keyword", action="append", default=[], dest="keywords")
    builder.add_argument("--readme")
    builder.add_argument("--license")
    builder.add_argument(
        "--notices", help="of other people's work that is in its files")
    builder.add_argument("--requires", action="append", default=[])
    builder.add_argument(
        "--extra", action="append", default=[], dest="extras",
        metavar="EXTRA:REQUIREMENT",
    )
    builder.add_argument(
        "--entry-point", action="append", default=[], dest="entry_points"
    )
    builder.add_argument(
        "--file", action="append", default=[], dest="files",
        metavar="FILE=PATH",
    )
    unpacker = verbs.add_parser("unpack")
    unpacker.set_defaults(run=unpack)
    unpacker.add_argument("folder")
    unpacker.add_argument("wheels", nargs="+", metavar="wheel")
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
