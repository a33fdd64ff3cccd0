# SPDX-License-Identifier: Apache-2.0
"""Random programs under native and under ours, compared step by step:

    python -m tests.differential.run --seeds 1-500

Needs the built libraries (CUDASIM_LIBRARIES, PYTHONPATH, see README.md). Exit
code 0: no difference; 1: differences, each shrunk and printed; 2: bad usage.
"""

import argparse
import json
import sys
import time

from tests.differential import compare, program
from tests.differential.shrink import shrink
from tests.differential.workers import Pairs


def differs(pairs, steps):
    words = compare.difference(steps, *pairs.run(steps))
    if words is None or "died" in words:
        return words
    # Perhaps within the bound of reserved_bytes, which is asked for only then.
    return compare.difference(steps, *pairs.run(steps, with_classes=True))


def investigate(steps, planted=None):
    """A difference again in fresh processes, and its shortest program.

    Returns (program, words), or None if fresh processes show none: then state
    was carried from one program to the next, which is a failure too.
    """
    with Pairs(planted) as pairs:
        if differs(pairs, steps) is None:
            return None
        short = shrink(steps, lambda each: differs(pairs, each) is not None)
    with Pairs(planted) as pairs:
        return short, differs(pairs, short)


def run(seeds, planted=None, progress=None, limit=5):
    """Compares every seed's program. Returns the differences found, as dicts.

    Stops after `limit` differences: one bug shows in many programs.
    """
    found = []
    with Pairs(planted) as pairs:
        for seed in seeds:
            steps = program.make(seed)
            words = differs(pairs, steps)
            if words is not None:
                again = investigate(steps, planted)
                found.append({
                    "seed": seed,
                    "first": words,
                    "again": again is not None,
                    "program": again[0] if again else steps,
                    "difference": again[1] if again else words,
                })  # fmt: skip
                pairs.stop()
            if progress is not None:
                progress(seed)
            if len(found) >= limit:
                break
    return found


def describe(found):
    again = "" if found["again"] else (
        " (not in fresh processes: state was carried over)")
    return (f"seed {found['seed']}{again}: {found['difference']}\n"
            f"{program.as_text(found['program'])}")


def parse_seeds(text):
    first, _, last = text.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if not seeds:
        raise ValueError(f"{text!r} holds no seed: write first-last")
    return seeds


def _progress(seeds, wanted):
    """A bar on a terminal, nothing else."""
    if not wanted or not sys.stderr.isatty():
        return None, lambda: None
    from rich.console import Console  # pylint: disable=import-outside-toplevel
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True))
    task = bar.add_task("programs", total=len(seeds))
    bar.start()
    return (lambda _: bar.advance(task)), bar.stop


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=parse_seeds, default="1-500",
                        help="first-last (default 1-500)")  # fmt: skip
    parser.add_argument("--limit", type=int, default=5,
                        help="stop after so many differences")  # fmt: skip
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    start = time.monotonic()
    progress, stop = _progress(arguments.seeds, not arguments.json)
    try:
        found = run(arguments.seeds, progress=progress, limit=arguments.limit)
    finally:
        stop()
    result = {
        "seeds": [arguments.seeds[0], arguments.seeds[-1]],
        "seconds": round(time.monotonic() - start, 1),
        "differences": found,
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        for each in found:
            print(describe(each))
        print(f"seeds {arguments.seeds[0]} to {arguments.seeds[-1]}: "
              f"{len(found)} differences, {result['seconds']} s")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
