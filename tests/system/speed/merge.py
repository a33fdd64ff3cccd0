# SPDX-License-Identifier: Apache-2.0
"""Joins files of rows into one; of equal names the last file's row stays.

    python -m tests.system.speed.merge OUT.json FILE.json ...

Thread-safety: yes; reads files and writes one.
Lifetime: one run.
Errors: ValueError for a file that is not one of rows.
Invariants: rows stay in the order of their first file, one on a line, with six
digits of each number.
"""

import json
import sys

from tests.system.speed import rows


def main(out, *paths):
    found = {}
    for path in paths:
        found.update(rows.read(path))
    lines = ",\n".join(json.dumps({
        key: float(f"{value:.6g}") if isinstance(value, float) else value
        for key, value in row.items()}, separators=(",", ":"))
        for row in found.values())
    with open(out, "w", encoding="utf-8") as file:
        file.write(f'{{"rows":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
