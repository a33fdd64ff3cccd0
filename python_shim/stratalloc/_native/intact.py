# SPDX-License-Identifier: Apache-2.0
"""Shared objects of the package, compared with what was installed.

A wheel's RECORD has the SHA-256 of every file, and stays beside the package
(packaging.python.org, "Recording installed projects"). A bridge of which a byte
has changed may load and corrupt memory; hashing one takes a millisecond.
"""

import base64
import csv
import glob
import hashlib
import os


def recorded(package: str) -> dict[str, str]:
    """Path below site-packages -> digest as RECORD has it, of shared objects.

    Args:
      package: folder of the installed package.

    Returns:
      Nothing for a source tree, and where several installations are mixed.
    """
    pattern = glob.escape(package) + "-*.dist-info/RECORD"
    found = glob.glob(pattern)
    if len(found) != 1:
        return {}
    with open(found[0], encoding="utf-8", newline="") as stream:
        return {row[0]: row[1] for row in csv.reader(stream)
                if len(row) > 1 and row[0].endswith(".so") and row[1]}


def is_damaged(package: str, path: str) -> bool:
    """Whether the file differs from what RECORD says of it.

    Args:
      package: folder of the installed package.
      path: a file below it.
    """
    name = os.path.relpath(path, os.path.dirname(package)).replace(os.sep, "/")
    algorithm, _, wanted = recorded(package).get(name, "").partition("=")
    if algorithm not in hashlib.algorithms_available:
        return False
    with open(path, "rb") as stream:
        digest = hashlib.new(algorithm, stream.read()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") != wanted
