# SPDX-License-Identifier: Apache-2.0
"""Jobs that fit: no byte may move, and a step may cost 1.02x native's.

    python -m tests.system.starved.fits [--jobs minilm,...] [--shares 90 95 99]
        [--rounds 5] [--warm 2] [--units 3] [--small] [--json FILE]

Per job and share: a card of which native's peak is that share, on it native
and ours in turn, each in a process of its own, numbers off. Step seconds are
virtual, of the modelled card with its call costs. What a step costs the host
is processor time of the process, all threads, the least of all rounds of
either; compare it between the two columns only (`instructions` counts).
"""

import argparse
import statistics
import sys
import time

from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote

_BAR = 1.02
_LARGE = 120 << 30


def main(argv=None):
    args = _parse(argv)
    zygote.prepare(card=args.card, numbers="off")
    from tests.system.starved import fitting

    table = fitting.SMALL if args.small else fitting.JOBS
    jobs = args.jobs.split(",") if args.jobs else list(table)
    _import()
    rows = []
    for job in jobs:
        need = zygote.run(_run, table[job], "native", _LARGE, args)
        for share in args.shares:
            row = _row(table[job], job, need, share, args)
            rows.append(row)
            print(_line(row), flush=True)
    red = [row for row in rows if row["error"]]
    print(f"{len(red)} of {len(rows)} red")
    if args.json:
        tables.write_json(args.json, {"card": args.card, "rows": rows})
    return 1 if red else 0


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.fits", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", help="names with commas between them")
    parser.add_argument("--shares", type=float, nargs="+",
                        default=(90, 95, 99),
                        help="native's peak in percent of the card")
    parser.add_argument("--rounds", type=int, default=5,
                        help="interleaved processes of each allocator (5)")
    parser.add_argument("--warm", type=int, default=2,
                        help="steps before those that are timed (2)")
    parser.add_argument("--units", type=int, default=3,
                        help="timed steps per process (3)")
    parser.add_argument("--small", action="store_true",
                        help="fewer layers and smaller batches, for a test")
    parser.add_argument("--card", default="h200")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    return parser.parse_args(argv)


def _import():
    """What every child would import."""
    import torchvision  # noqa: F401
    import transformers  # noqa: F401


def _run(job, allocator, capacity, args):
    """Warm units, then measured ones; what they cost and what moved."""
    import torch

    # Host memory for evicted bytes is real even with numbers off.
    place.device(capacity, allocator, host_budget=2 << 30)
    work = job()
    for _ in range(args.warm):
        work()
    torch.cuda.synchronize()
    virtual, host = [], []
    for _ in range(args.units):
        with place.virtual_seconds(virtual):
            started = time.process_time()
            work()
            torch.cuda.synchronize()
            host.append(time.process_time() - started)
    stats = torch.cuda.memory_stats()
    return {
        "virtual": statistics.mean(virtual), "host": min(host),
        "moved": place.moved(), "faults": place.faults(),
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "retries": stats.get("num_alloc_retries", 0),
    }


def _row(job, name, need, share, args):
    capacity = -(-int(need["reserved"] * 100 / share) // place.PAGE)
    capacity *= place.PAGE
    row = {"job": name, "share": share, "card": capacity, "error": None,
           "native": None, "ours": None}
    runs = {"native": [], "stratalloc": []}
    try:
        for _ in range(args.rounds):
            for allocator, results in runs.items():
                results.append(zygote.run(_run, job, allocator,
                                          capacity, args))
    except (zygote.Refused, zygote.Died) as error:
        row["error"] = f"{allocator}: {error}"
        row["trace"] = getattr(error, "trace", None)
        return row
    for name, key in (("native", "native"), ("stratalloc", "ours")):
        row[key] = runs[name][0] | {
            "host": min(run["host"] for run in runs[name]),
            "moved": {way: sum(run["moved"][way] for run in runs[name])
                      for way in ("out", "in")},
            "faults": [fault for run in runs[name] for fault in run["faults"]]}
    row["virtual_ratio"] = row["ours"]["virtual"] / row["native"]["virtual"]
    row["host_ratio"] = row["ours"]["host"] / row["native"]["host"]
    row["error"] = _fault(row)
    return row


def _fault(row):
    moved = row["ours"]["moved"]
    if row["ours"]["faults"]:
        return "; ".join(row["ours"]["faults"])
    if moved["out"] or moved["in"]:
        return f"{moved['out']} bytes out and {moved['in']} in: it fits"
    if row["virtual_ratio"] > _BAR:
        return f"a step takes {row['virtual_ratio']:.3f}x native's"
    return None


def _line(row):
    text = (f"{'RED ' if row['error'] else ''}{row['job']} at "
            f"{row['share']:g} % of {row['card'] >> 20} MiB")
    if row["ours"]:
        ours, native = row["ours"], row["native"]
        text += (
            f": moved {ours['moved']['out'] >> 20} out "
            f"{ours['moved']['in'] >> 20} in MiB; step "
            f"{ours['virtual'] * 1e3:.3f} ms against "
            f"{native['virtual'] * 1e3:.3f} ({row['virtual_ratio']:.3f}x); "
            f"host {ours['host'] * 1e3:.1f} ms against "
            f"{native['host'] * 1e3:.1f} ({row['host_ratio']:.2f}x); peak "
            f"reserved {ours['reserved'] >> 20} against "
            f"{native['reserved'] >> 20} MiB, native's retries "
            f"{native['retries']}")
    return text + (f"\n    {row['error'][:600]}" if row["error"] else "")


if __name__ == "__main__":
    sys.exit(main())
