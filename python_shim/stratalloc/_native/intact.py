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


def is_installed(package: str) -> bool:
    """Whether an installer put the package into its folder; it is else a source
    tree."""
    return bool(glob.glob(glob.escape(package) + "-*.dist-info"))


def recorded(package: str, version: str | None) -> dict[str, str]:
    """Path below site-packages -> digest as RECORD has it, of shared objects.

    Args:
      package: folder of the installed package.
      version: that of the package; an interrupted upgrade leaves the RECORD of
        another version beside it. None for a source tree.

    Returns:
      Nothing for a source tree.

    Raises:
      OSError: RECORD cannot be read.
      ValueError: RECORD is not the table that it should be.
    """
    try:
        with open(f"{package}-{version}.dist-info/RECORD", encoding="utf-8",
                  newline="") as stream:
            return {row[0]: row[1] for row in csv.reader(stream)
                    if len(row) > 1 and row[0].endswith(".so") and row[1]}
    except FileNotFoundError:
        return {}
    except csv.Error as error:
        raise ValueError(f"RECORD: {error}") from None


def is_damaged(package: str, version: str | None, path: str) -> bool:
    """Whether the file differs from what RECORD says of it.

    Args:
      package: folder of the installed package.
      version: that of the package; None for a source tree.
      path: a file below it.

    Raises:
      OSError, ValueError: RECORD or the file cannot be read.
    """
    name = os.path.relpath(path, os.path.dirname(package)).replace(os.sep, "/")
    algorithm, _, wanted = recorded(package, version).get(name, "").partition("=")
    if algorithm not in hashlib.algorithms_available:
        return False
    with open(path, "rb") as stream:
        digest = hashlib.new(algorithm, stream.read()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") != wanted
