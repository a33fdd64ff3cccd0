# SPDX-License-Identifier: Apache-2.0
"""What a step of a job that fits costs the host: instructions, ours and native's.

    python -m tests.system.starved.instructions [--jobs minilm,...] [--share 95]
        [--warm 3] [--small] [--json FILE]

Per job: a card of which native's peak is that share, numbers off, and one step
after the warm ones under valgrind's callgrind, which counts every instruction
of every thread of the process, Python's and torch's too. Nothing here depends
on what else the machine does. Two minutes per run, two runs per job; valgrind
has to be installed.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote

_LARGE = 120 << 30
_ALLOCATORS = ("native", "stratalloc")


def main(argv=None):
    args = _parse(argv)
    if args.child:
        _count(args)
        return 0
    zygote.prepare(card=args.card, numbers="off")
    from tests.system.starved import fits
    from tests.system.starved import fitting

    table = fitting.SMALL if args.small else fitting.JOBS
    args.units = 1
    rows = []
    for job in args.jobs.split(",") if args.jobs else list(table):
        need = zygote.run(fits._run, table[job], "native", _LARGE, args)
        capacity = int(need["reserved"] * 100 / args.share)
        capacity = -(-capacity // place.PAGE) * place.PAGE
        row = {"job": job, "card": capacity}
        for allocator in _ALLOCATORS:
            row[allocator] = _under_valgrind(job, allocator, capacity, args)
        row["ratio"] = row["stratalloc"] / row["native"]
        rows.append(row)
        print(f"{job} on {capacity >> 20} MiB: {row['stratalloc'] / 1e6:.1f} "
              f"million against {row['native'] / 1e6:.1f} "
              f"({row['ratio']:.3f}x)", flush=True)
    if args.json:
        tables.write_json(args.json, {"card": args.card, "rows": rows})
    return 0


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.instructions", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", help="names with commas between them")
    parser.add_argument("--share", type=float, default=95,
                        help="native's peak in percent of the card (95)")
    parser.add_argument("--warm", type=int, default=3,
                        help="steps before the one that is counted (3)")
    parser.add_argument("--small", action="store_true",
                        help="fewer layers and smaller batches")
    parser.add_argument("--card", default="h200")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _under_valgrind(job, allocator, capacity, args):
    """Instructions of the counted step."""
    with tempfile.TemporaryDirectory() as folder:
        counts = pathlib.Path(folder, "counts")
        command = [
            "valgrind", "--tool=callgrind", "--instr-atstart=no",
            f"--callgrind-out-file={counts}", sys.executable, "-m",
            "tests.system.starved.instructions", "--card", args.card, "--warm",
            str(args.warm), *(["--small"] if args.small else []),
            "--child", job, allocator, str(capacity)]
        done = subprocess.run(command, text=True, capture_output=True,
                              env=os.environ | {"OMP_NUM_THREADS": "1"},
                              check=False)
        # The first dump is the step; what comes after it is the end.
        dump = pathlib.Path(folder, "counts.1")
        if done.returncode or not dump.exists():
            sys.exit(f"{job} under {allocator}: {done.stderr[-2000:]}")
        return int(re.search(r"^totals: (\d+)", dump.read_text(),
                             re.MULTILINE).group(1))


def _count(args):
    """Never returns."""
    job, allocator, capacity = args.child
    zygote.prepare(card=args.card, numbers="off")
    from tests.system.starved import fitting

    import torch

    place.device(int(capacity), allocator, host_budget=2 << 30)
    work = (fitting.SMALL if args.small else fitting.JOBS)[job]()
    for _ in range(args.warm):
        work()
    torch.cuda.synchronize()
    _control("--instr=on")
    work()
    torch.cuda.synchronize()
    _control("--instr=off")
    _control("--dump")
    os._exit(0)  # pylint: disable=protected-access


def _control(what):
    subprocess.run(["callgrind_control", what, str(os.getpid())], check=True,
                   stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
