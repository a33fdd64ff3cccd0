# SPDX-License-Identifier: Apache-2.0
"""What `stratalloc fit` says of recorded programs, against running them:

    python -m tests.system.e2e.fit_truth_run [--jobs adamw,lora] [--seeds 1-3]

Each job of programs/fit_jobs.py is recorded on a card with room for it. What
fit says of smaller cards is then held against the job on such a card, tiering
off, in a process of its own: whether it fits, and the peaks of reserved and
allocated bytes, up to the failure where it does not.

With --tiering the cards have 50 to 90 % of the peak and the allocator evicts:
fit's estimate of what leaves is held against what left. It is red where the
verdict is another, or where fewer than a fifth or more than five quarters of
the bytes were said.

With --slowdown, on a simulated card (h200 unless another is named), the cards
have 80 % of the peak: how much longer the job takes there, in virtual seconds,
is held against what fit adds for the moves that it expects. It is red where the
upper end of fit's range is more than a fifth off. The column "its copies" says
which factor the bytes that really moved make alone: what lies between it and what
fit says are bytes that fit did not expect, what lies above it is no copy (host
memory that is pinned, memory that is mapped, waits).

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

from tests.system.starved import place
from tests.system.starved import zygote

ROOM = 64 << 30
TIERED = (.5, .6, .7, .8, .9)
LEAST, MOST = .2, 1.25  # what fit says, of what leaves
SMALLER = .8
BUS = 55e9  # bytes per second of a simulated h200's copies, each direction
NEAR = .2  # how far a slowdown may be off
# Of the peak on a card with room; `handles` are added.
CARDS = ((1., -1), (1., 0), (1.25, 0), (.9, 0))


def run(name, seed, capacity, path, settings):
    """What became of a job there; its recording goes to `path`."""
    import torch

    from tests.system.e2e.programs import fit_jobs

    gc.disable()  # when a cycle is found is not the program's
    place.device(capacity, **settings)
    import stratalloc

    refused, seconds = False, []
    with place.virtual_seconds(seconds), stratalloc.trace(path) if path else contextlib.nullcontext():
        try:
            fit_jobs.JOBS[name](random.Random(seed))
        except torch.OutOfMemoryError:
            refused = True
        torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {"seconds": seconds[0]} | _counted(refused, stats, settings)


def _counted(refused, stats, settings):
    moved = place.moved()
    return {"fits": not refused, "reserved": stats["reserved_bytes.all.peak"],
            "allocated": stats["allocated_bytes.all.peak"]} | (
        {"evicted": moved["out"], "restored": moved["in"]} if settings.get("tiering", True)
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


def slowed(name, seed, folder, share=SMALLER):
    """The row of a card on which the allocator evicts: by which factor the job
    takes longer, and what fit says of a recording of a card with room."""
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.analysis.fit import fit

    path = os.path.join(folder, f"{name}.{seed}.strata")
    roomy = zygote.run(run, name, seed, ROOM, path, {"tiering": False})
    recorded = recording.read(path)
    peak = fit(recorded, ROOM)
    capacity = place.pages(peak.peak_reserved * share)
    said = fit(recorded, capacity, policy="tiering", bandwidth=BUS)
    real = zygote.run(run, name, seed, capacity, None,
                      {"host_budget": 4 << 30})
    # The recording has the host's time, which no copy of the simulator takes.
    upper = 1 + said.moves.seconds[1] / roomy["seconds"]
    truth = real["seconds"] / roomy["seconds"]
    near = abs(peak.peak_allocated / roomy["allocated"] - 1) <= .03 and (
        said.fits == real["fits"]) and abs(upper / truth - 1) <= NEAR
    return {"job": name, "seed": seed, "capacity": capacity, "same": near,
            "peak": (peak.peak_allocated, roomy["allocated"]),
            "fits": (said.fits, real["fits"]),
            "slower": (said.moves.slower[0], upper, truth),
            "copies": 1 + (real["evicted"] + real["restored"]) / BUS
            / roomy["seconds"],
            "evicted": (said.moves.evicted, real["evicted"]),
            "seconds": (roomy["seconds"], real["seconds"])}


def slow_line(row):
    (low, high, truth), peak = row["slower"], row["peak"]
    return (f"{'   ' if row['same'] else 'RED'} {row['job']:16} "
            f"{row['capacity'] >> 20:5} | {peak[0] / 2**20:8.2f} "
            f"{peak[1] / 2**20:8.2f} {100 * (peak[0] / peak[1] - 1):+5.1f} % | "
            f"{low:.2f} to {high:5.2f} {truth:6.2f} "
            f"{100 * (high / truth - 1):+6.1f} % {row['copies']:6.2f} | "
            f"{row['evicted'][0] >> 20:6} {row['evicted'][1] >> 20:6} | "
            f"{1e3 * row['seconds'][0]:7.2f} {1e3 * row['seconds'][1]:7.2f}")


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
            "real": real, "same": all(real[key] == said[key] for key in said)}


def prepare(card=None):
    """What every child has imported."""
    zygote.prepare(card=card, numbers="off")
    from tests.system.e2e.programs import fit_jobs

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
    parser = argparse.ArgumentParser(prog="tests.system.e2e.fit_truth_run")
    parser.add_argument("--jobs", help="names with commas between them")
    parser.add_argument("--seeds", default="0-0", metavar="FIRST-LAST")
    parser.add_argument("--tiering", action="store_true",
                        help="smaller cards, and the allocator evicts")
    parser.add_argument("--slowdown", action="store_true",
                        help="smaller cards, and how much longer it takes")
    parser.add_argument("--card", help="of the simulated device: h200")
    args = parser.parse_args(arguments)
    first, dash, last = args.seeds.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()
            and int(first) <= int(last)):
        parser.error("--seeds takes two numbers, as 1-3")
    known = prepare(args.card or ("h200" if args.slowdown else None))
    jobs = args.jobs.split(",") if args.jobs else known
    if set(jobs) - set(known):
        parser.error(f"--jobs: one of {', '.join(known)}")
    print("    job                MiB | fit: peak    it is            | fit: slower"
          "    it is          its copies | fit: out  it is | ms, roomy   small"
          if args.slowdown else
          "    job               seed    MiB | fit says reserved allocated "
          f"{'evicted ' if args.tiering else ''}| it is")
    wrong = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in jobs:
            for seed in range(int(first), int(last) + 1):
                for row in ([slowed(name, seed, folder)] if args.slowdown
                            else tiered(name, seed, folder) if args.tiering
                            else rows(name, seed, folder)):
                    print((slow_line if args.slowdown else line)(row),
                          flush=True)
                    count += 1
                    wrong += not row["same"]
    print(f"{wrong} of {count} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
