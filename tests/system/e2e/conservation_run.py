# SPDX-License-Identifier: Apache-2.0
"""Seeded programs whose accounts must add up after every step:

    python -m tests.system.e2e.conservation_run --seeds 2001-3000

A process per 20 seeds. Exit code 0: every sum was another's; 1: not, and each
difference was printed; 2: bad usage.
"""

import argparse
import sys

from tests.system.e2e import running

TOGETHER = 20  # seeds of one process


def look(first, last):
    """What programs/conservation.py says of these seeds: its dict."""
    return running.last_json(running.on_device(
        "24MiB", running.program("conservation.py"), str(first), str(last)))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tests.system.e2e.conservation_run")
    parser.add_argument("--seeds", required=True, metavar="FIRST-LAST")
    first, dash, last = parser.parse_args(arguments).seeds.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()
            and int(first) <= int(last)):
        parser.error("--seeds takes two numbers, as 2001-3000")
    first, last = int(first), int(last)
    programs = looks = wrong = 0
    for begin in range(first, last + 1, TOGETHER):
        end = min(begin + TOGETHER - 1, last)
        try:
            found = look(begin, end)
        except AssertionError as died:
            print(f"seeds {begin} to {end}: {died}", flush=True)
            wrong += 1
            continue
        for seed, step, what in found["wrong"]:
            print(f"seed {seed}, step {step}: {what}", flush=True)
        wrong += len(found["wrong"])
        programs += found["programs"]
        looks += found["looks"]
        print(f"{programs} programs, {looks} looks, {wrong} wrong", flush=True)
    return 1 if wrong or programs != last - first + 1 else 0


if __name__ == "__main__":
    sys.exit(main())
