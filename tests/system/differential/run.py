# SPDX-License-Identifier: Apache-2.0
"""Random programs under native and under ours, compared step by step:

    python -m tests.system.differential.run --seeds 1-500
    python -m tests.system.differential.run --seeds 1-500 --mode async --starved

Needs the built libraries (CUDASIM_LIBRARIES, PYTHONPATH, see README.md). Exit
code 0: no difference but explained ones; 1: others, each shrunk and printed;
2: bad usage.
"""

import argparse
import json
import sys
import time

from tests.system.differential import program
from tests.system.differential.examine import Examiner
from tests.system.differential.shrink import shrink
from tests.system.differential.workers import Pairs


def case_of(steps, seed, mode="eager", starved=False):
    """How the program of a seed is run."""
    room = program.room_of(steps, seed) if starved else None
    return {"seed": seed, "mode": mode, "room": room}


def investigate(steps, case, planted=None):
    """A difference again in fresh processes, and its shortest program.

    Returns (program, words), or None if fresh processes show none: then state
    was carried from one program to the next, which is a failure too.
    """
    with Pairs(case["mode"], planted) as pairs:
        examiner = Examiner(pairs)
        if examiner.unexplained(steps, case) is None:
            return None
        short = shrink(
            steps, lambda each: examiner.unexplained(each, case) is not None
        )
    with Pairs(case["mode"], planted) as pairs:
        return short, str(Examiner(pairs).unexplained(short, case))


def run(seeds, planted=None, progress=None, limit=5, mode="eager",
        starved=False):  # fmt: skip
    """Compares every seed's program; stops after `limit` differences that
    nothing explains: one bug shows in many programs.

    Returns the Examiner's account, with those as "differences".
    """
    unexplained = []
    with Pairs(mode, planted) as pairs:
        examiner = Examiner(pairs)
        for seed in seeds:
            steps = program.make(seed, starved=starved)
            case = case_of(steps, seed, mode, starved)
            first = examiner.unexplained(steps, case)
            if first is not None:
                again = investigate(steps, case, planted)
                unexplained.append({
                    "seed": seed,
                    "first": str(first),
                    "said": first.said,
                    "again": again is not None,
                    "program": again[0] if again else steps,
                    "difference": again[1] if again else str(first),
                    "case": case,
                })  # fmt: skip
                pairs.stop()
            if progress is not None:
                progress(seed)
            if len(unexplained) >= limit:
                break
    return {**examiner.account(), "differences": unexplained}


def describe(found):
    again = "" if found["again"] else (
        " (not in fresh processes: state was carried over)")
    return (f"seed {found['seed']}{again}: {found['difference']}\n"
            f"first: {found['first']} [{found['said']}]\n"
            f"as {found['case']}:\n{program.as_text(found['program'])}")


def summary(result):
    """What was done, in one line, and the classes of what differed."""
    lines = [f"{result['programs']} programs, {result['runs']} compared, "
             f"{len(result['differences'])} differences that nothing explains",
             f"  {result['refused']} steps refused by both, "
             f"{result['pending']} with blocks that wait for events",
             f"  {result['looks']} second runs to look at memory, of native "
             f"alone {result['native']}"]
    lines += [f"  {kind}: first in {n['programs']} programs, "
              f"{n['counts']} in all" for kind, n in result["classes"].items()]
    return "\n".join(lines)


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
    parser.add_argument("--mode", choices=("eager", "async"), default="eager",
                        help="of the device; async: the seed says what of the "
                        "work outstanding is done before each step")  # fmt: skip
    parser.add_argument("--starved", action="store_true",
                        help="about as much memory as each program needs")  # fmt: skip
    parser.add_argument("--limit", type=int, default=5,
                        help="stop after so many differences")  # fmt: skip
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    start = time.monotonic()
    progress, stop = _progress(arguments.seeds, not arguments.json)
    try:
        result = run(arguments.seeds, progress=progress, limit=arguments.limit,
                     mode=arguments.mode, starved=arguments.starved)  # fmt: skip
    finally:
        stop()
    result = {
        "seeds": [arguments.seeds[0], arguments.seeds[-1]],
        "mode": arguments.mode,
        "starved": arguments.starved,
        "seconds": round(time.monotonic() - start, 1),
        **result,
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        for each in result["differences"]:
            print(describe(each))
        print(f"seeds {arguments.seeds[0]} to {arguments.seeds[-1]}, "
              f"{result['seconds']} s: {summary(result)}")
    sys.exit(1 if result["differences"] else 0)


if __name__ == "__main__":
    main()
