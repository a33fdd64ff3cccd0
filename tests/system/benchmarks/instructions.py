# SPDX-License-Identifier: Apache-2.0
"""How many instructions a malloc, a free and an operator execute.

    python3 instructions.py HOT_PATH            prints the table
    python3 instructions.py HOT_PATH --write    renews instructions.json

HOT_PATH is the program built from hot_path.cc. What callgrind counts does not
depend on the machine's load; it does depend on the compiler, which the table
names.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                     "instructions.json")
PAIRS = 1000


def compiler():
    """The compiler's version, e.g. "gcc 12.2.0"."""
    version = subprocess.run(["gcc", "-dumpfullversion"], check=True,
                             capture_output=True, text=True).stdout.strip()
    return f"gcc {version}"


def measure(program):
    """{"malloc 512B": instructions per call, ...}"""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "callgrind.out")
        subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
             program, str(PAIRS)],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        text = subprocess.run(
            ["callgrind_annotate", "--inclusive=yes", "--threshold=100",
             "--auto=no", out],
            check=True, capture_output=True, text=True).stdout
    counts = {}
    row = re.compile(r"^\s*([\d,]+) .*:(malloc|free|enter|leave)_(\w+)\b")
    for line in text.splitlines():
        found = row.match(line)
        if found and "hot_path" in line:
            name = f"{found.group(2)} {found.group(3)}"
            total = int(found.group(1).replace(",", ""))
            counts[name] = round(total / PAIRS)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    counts = measure(args.program)
    for name, count in sorted(counts.items()):
        print(f"{name:20} {count:6}")
    if args.write:
        with open(TABLE, "w", encoding="utf-8") as out:
            json.dump({"compiler": compiler(), "instructions": counts}, out,
                      indent=2, sort_keys=True)
            out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
