# SPDX-License-Identifier: Apache-2.0
"""What the measuring programs write: JSON for machines, sizes for people."""

import json
import sys


def write_json(path, value):
    text = json.dumps(value, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def mib(size):
    return f"{size / (1 << 20):.1f}"
