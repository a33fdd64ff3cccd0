# SPDX-License-Identifier: Apache-2.0
"""`stratalloc oom DIR`: a bundle for people, or as JSON.

DIR is a bundle, or a directory of bundles, of which the newest is shown. What
is there is read as data and nothing of it is run: the report is made again of
report.json. UsageError: there is no bundle; DamagedError: there is one that
cannot be read.
"""

import json
import math
import os
import sys

from stratalloc._oom import bundle
from stratalloc._oom.autopsy import OutOfMemoryReport
from stratalloc._rendering.table import printable
from stratalloc._terminal.command import EXIT_FAILED, EXIT_OK, UsageError
from stratalloc.telemetry.errors import TelemetryError
from stratalloc.telemetry.regular import opened

_MOST = 256 << 20  # bytes of a JSON file that is read


class DamagedError(Exception):
    """What is no report any more."""


def main(args):
    """Of the parsed command line; returns the exit code."""
    folder = find(args.directory)
    try:
        report, manifest = read(folder)
    except DamagedError as error:
        print(f"stratalloc oom: {printable(f'{folder}: {error}')}",
              file=sys.stderr)
        return EXIT_FAILED
    if args.json:
        values = {**report.to_dict(), "bundle": folder, "manifest": manifest}
        if not args.json.write(values):
            return EXIT_FAILED
        if args.json.on_stdout:
            return EXIT_OK
    report.bundle = folder
    print(report.text())
    print(_files(folder, manifest))
    return EXIT_OK


def find(directory):
    """The bundle that is meant; UsageError if there is none."""
    if not os.path.isdir(directory):
        raise UsageError(f"{directory}: no such directory; give a bundle, or "
                         "the directory that oom_dir names")
    if os.path.isfile(os.path.join(directory, "manifest.json")):
        return directory
    found = [path for path in (os.path.join(directory, name)
                               for name in os.listdir(directory))
             if os.path.basename(path).startswith(bundle.PREFIX)
             and not path.endswith(bundle.PARTIAL)
             and os.path.isfile(os.path.join(path, "manifest.json"))]
    if not found:
        raise UsageError(f"{directory}: there is no bundle of an out of memory "
                         "(oom_.../manifest.json)")
    return max(found, key=lambda path: (os.path.getmtime(path), path))


def read(folder):
    """(OutOfMemoryReport, the manifest) of a bundle; DamagedError."""
    manifest = _json(folder, "manifest.json")
    if not isinstance(manifest, dict) or not isinstance(
            manifest.get("files"), dict):
        raise DamagedError("manifest.json is no manifest of a bundle")
    values = _json(folder, "report.json")
    try:
        report = OutOfMemoryReport.from_dict(values)
        report.text()  # says what is missing of it before anything is printed
        return report, manifest
    except Exception as error:  # pylint: disable=broad-exception-caught
        # It may be anybody's, and have anything in place of anything.
        raise DamagedError("report.json is damaged or of another version: "
                           f"{type(error).__name__}: {error}") from None


def _json(folder, name):
    path = os.path.join(folder, name)
    try:
        with opened(path) as file:
            data = file.read(_MOST + 1)
        if len(data) > _MOST:
            raise DamagedError(f"{name} is larger than a report can be")
        return json.loads(data.decode("utf-8"), parse_constant=_finite,
                          parse_float=_finite)
    except TelemetryError as error:
        raise DamagedError(str(error)) from None
    except OSError as error:
        raise DamagedError(f"{name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{name} is no JSON: {error}") from None


def _finite(text):
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of a report")
    return value


def _files(folder, manifest):
    lines = [f"In {folder}:"]
    lines += [f"  {name}" for name in manifest["files"]]
    left = manifest.get("left_out")
    if isinstance(left, dict):
        lines += [f"  without {name}: {why}" for name, why in left.items()]
    return "\n".join(map(printable, lines))
