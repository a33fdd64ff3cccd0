# SPDX-License-Identifier: Apache-2.0
"""What `stratalloc fit` says of recorded programs, against running them:

    python -m tests.e2e.fit_truth_run [--jobs adamw,lora] [--seeds 1-3]

Each job of programs/fit_jobs.py is recorded on a card with room for it. What
fit says of smaller cards is then held against the job on such a card, tiering
off, in a process of its own: whether it fits, and the peaks of reserved and
allocated bytes, up to the failure where it does not.

With --tiering the cards have 50 to 90 % of the peak and the allocator evicts:
fit's estimate of what leaves is held against what left. It is red where the
verdict is another, or where fewer than a fifth or more than five quarters of
the bytes were said.

Numbers are off. Work takes no time, so streams are never behind; --card h200
is a card where they are. Exit code 0: all the same; 1: each difference is in
the table; 2: bad usage.
"""

import argparse
import contextlib
import gc
import os
import random
import sys
import tempfile

from tests.starved import place
from tests.starved import zygote

ROOM = 64 << 30
TIERED = (.5, .6, .7, .8, .9)
LEAST, MOST = .2, 1.25  # what fit says, of what leaves
# Of the peak on a card with room; `handles` are added.
CARDS = ((1., -1), (1., 0), (1.25, 0), (.9, 0))


def run(name, seed, capacity, path, settings):
    """What became of a job there; its recording goes to `path`."""
    import torch

    from tests.e2e.programs import fit_jobs

    gc.disable()  # when a cycle is found is not the program's
    place.device(capacity, **settings)
    import stratalloc

    refused = False
    with stratalloc.trace(path) if path else contextlib.nullcontext():
        try:
            fit_jobs.JOBS[name](random.Random(seed))
        except torch.OutOfMemoryError:
            refused = True
        torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {"fits": not refused, "reserved": stats["reserved_bytes.all.peak"],
            "allocated": stats["allocated_bytes.all.peak"]} | (
        {"evicted": place.moved()["out"]} if settings.get("tiering", True)
        else {})


def rows(name, seed, folder):
    """[dict]: a card each, what fit said and what was."""
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.analysis.fit import fit

    path = os.path.join(folder, f"{name}.{seed}.strata")
    real = zygote.run(run, name, seed, ROOM, path, {"tiering": False})
    recorded = recording.read(path)
    found = [_row(name, seed, ROOM, fit(recorded, ROOM), real)]
    for share, handles in CARDS:
        capacity = place.pages(found[0]["said"]["reserved"] * share)
        capacity += handles * place.PAGE
        found.append(_row(
            name, seed, capacity, fit(recorded, capacity),
            zygote.run(run, name, seed, capacity, None, {"tiering": False})))
    return found


def tiered(name, seed, folder, shares=TIERED):
    """The same of smaller cards from which the allocator evicts."""
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.analysis.fit import fit

    path = os.path.join(folder, f"{name}.{seed}.strata")
    zygote.run(run, name, seed, ROOM, path, {"tiering": False})
    recorded = recording.read(path)
    peak = fit(recorded, ROOM).peak_reserved
    found = []
    for share in shares:
        capacity = place.pages(peak * share)
        said = fit(recorded, capacity, policy="tiering")
        real = zygote.run(run, name, seed, capacity, None,
                          {"host_budget": 4 << 30})
        row = _row(name, seed, capacity, said, real)
        row["said"]["evicted"] = said.moves.evicted
        row["same"] = said.fits == real["fits"] and (
            not said.fits or LEAST * real["evicted"] <= said.moves.evicted
            <= MOST * real["evicted"])
        found.append(row)
    return found


def from_a_small_card(name, seed, folder, share=.6):
    """What a recording of a card from which much left says of one with room."""
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.analysis.fit import fit

    real = zygote.run(run, name, seed, ROOM, None, {"tiering": False})
    path = os.path.join(folder, f"{name}.{seed}.small.strata")
    small = zygote.run(run, name, seed, place.pages(real["reserved"] * share),
                       path, {"host_budget": 4 << 30})
    row = _row(name, seed, ROOM, fit(recording.read(path), ROOM), real)
    assert small["fits"]  # else it ended early
    row["evicted"] = small["evicted"]
    return row


def _row(name, seed, capacity, said, real):
    said = {"fits": said.fits, "reserved": said.peak_reserved,
            "allocated": said.peak_allocated}
    return {"job": name, "seed": seed, "capacity": capacity, "said": said,
            "real": real, "same": said == real}


def prepare(card=None):
    """What every child has imported."""
    zygote.prepare(card=card, numbers="off")
    from tests.e2e.programs import fit_jobs

    return list(fit_jobs.JOBS)


def line(row):
    def cell(one):
        return (f"{'fits' if one['fits'] else 'does not':8} "
                f"{one['reserved'] >> 20:6} {one['allocated'] / 2**20:9.2f}"
                + (f" {one['evicted'] >> 20:7}" if "evicted" in one else ""))

    return (f"{'   ' if row['same'] else 'RED'} {row['job']:16} "
            f"{row['seed']:5} {row['capacity'] >> 20:6} | "
            f"{cell(row['said'])} | {cell(row['real'])}")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tests.e2e.fit_truth_run")
    parser.add_argument("--jobs", help="names with commas between them")
    parser.add_argument("--seeds", default="0-0", metavar="FIRST-LAST")
    parser.add_argument("--tiering", action="store_true",
                        help="smaller cards, and the allocator evicts")
    parser.add_argument("--card", help="of the simulated device: h200")
    args = parser.parse_args(arguments)
    first, dash, last = args.seeds.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()
            and int(first) <= int(last)):
        parser.error("--seeds takes two numbers, as 1-3")
    known = prepare(args.card)
    jobs = args.jobs.split(",") if args.jobs else known
    if set(jobs) - set(known):
        parser.error(f"--jobs: one of {', '.join(known)}")
    print("    job               seed    MiB | fit says reserved allocated "
          f"{'evicted ' if args.tiering else ''}| it is")
    wrong = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in jobs:
            for seed in range(int(first), int(last) + 1):
                look = tiered if args.tiering else rows
                for row in look(name, seed, folder):
                    print(line(row), flush=True)
                    count += 1
                    wrong += not row["same"]
    print(f"{wrong} of {count} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
