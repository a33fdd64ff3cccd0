# SPDX-License-Identifier: Apache-2.0
"""Starved jobs: every model with every job on cards that are too small.

    python -m tests.system.starved.matrix [--models bert,...] [--jobs adamw,...]
        [--ratios 1.5 2] [--cells bert:adamw:1.5,...] [--json FILE]

Exit code 1 if a cell was refused or its numbers are not the CPU's.
"""

import argparse
import collections
import sys
import tempfile
import time

from tests.system.starved import tables
from tests.system.starved import zygote

_RATIOS = (1.5, 2.)


def main(argv=None):
    args = _parse(argv)
    started = time.monotonic()
    zygote.prepare()
    # Only now: whoever imports torch first loads CUDA.
    from tests.system.starved import cell
    from tests.system.starved import jobs
    from tests.system.starved import models

    wanted = _cells(args, list(models.MODELS), list(jobs.JOBS))
    _import_for(wanted)
    rows = []
    total = sum(len(ratios) for ratios in wanted.values())
    with tempfile.TemporaryDirectory() as folder:
        for (model, job), ratios in wanted.items():
            for row in _row(cell, model, job, ratios, folder, args.hidden):
                rows.append(row)
                _tell(row, len(rows), total)
    red = [row for row in rows if row["error"]]
    print(f"{len(rows) - len(red)} of {len(rows)} cells equal, {len(red)} "
          f"red, in {time.monotonic() - started:.0f} s", flush=True)
    if args.json:
        tables.write_json(args.json, {"cells": rows, "red": len(red)})
    return 1 if red else 0


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.matrix", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names with commas between them")
    parser.add_argument("--jobs", help="names with commas between them")
    parser.add_argument("--ratios", type=float, nargs="+", default=_RATIOS,
                        help="need divided by the card (1.5 2)")
    parser.add_argument("--cells", help="model:job:ratio,... and no others")
    parser.add_argument("--hidden", type=int, default=256,
                        help="width of the models (256: some weights then "
                        "have 1 MiB, the size of a library's workspace)")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    return parser.parse_args(argv)


def _cells(args, models, jobs):
    """{(model, job): [ratio]} of what was asked for, in order."""
    found = collections.defaultdict(list)
    if args.cells:
        for text in args.cells.split(","):
            model, job, ratio = text.split(":")
            _known((model,), models)
            _known((job,), jobs)
            found[model, job].append(float(ratio))
        return found
    chosen = args.models.split(",") if args.models else models
    columns = args.jobs.split(",") if args.jobs else jobs
    _known(chosen, models)
    _known(columns, jobs)
    for model in chosen:
        for job in columns:
            found[model, job] = list(args.ratios)
    return found


def _known(names, all_names):
    for name in names:
        if name not in all_names:
            raise SystemExit(f"there is no {name!r}: {', '.join(all_names)}")


def _import_for(wanted):
    """What the children would each import; seconds, so only what is needed."""
    names = {job for _, job in wanted}
    import transformers  # noqa: F401

    if names & {"trainer", "accelerate"}:
        import accelerate  # noqa: F401
    if "trainer" in names:
        from transformers import Trainer  # noqa: F401
    if "lightning" in names:
        import pytorch_lightning  # noqa: F401


def _row(cell, model, job, ratios, folder, hidden):
    try:
        reference = cell.Reference(model, job, folder, hidden)
    except (zygote.Refused, zygote.Died) as error:
        for ratio in ratios:
            yield {"model": model, "job": job, "ratio": ratio,
                   "error": f"unstarved already: {error}",
                   "trace": getattr(error, "trace", None)}
        return
    for ratio in ratios:
        yield cell.run(reference, ratio)
    reference.close()


def _tell(row, done, total):
    name = f"{row['model']}:{row['job']}:{row['ratio']:g}"
    if "need" in row:
        name += (f" (need {tables.mib(row['need'])}, card "
                 f"{tables.mib(row['card'])} MiB)")
    if "moved" in row:
        name += (f" out {tables.mib(row['moved']['out'])}"
                 f" in {tables.mib(row['moved']['in'])} MiB,"
                 f" {row['difference']:.3g} from the CPU"
                 f" (unstarved {row['native_difference']:.3g}),"
                 f" {row['seconds']} s")
    print(f"[{done}/{total}] {'RED ' if row['error'] else ''}{name}"
          + (f"; {row['note']}" if row.get("note") else "")
          + (f"\n    {row['error'][:600]}" if row["error"] else ""),
          flush=True)


if __name__ == "__main__":
    sys.exit(main())
