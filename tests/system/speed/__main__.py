# SPDX-License-Identifier: Apache-2.0
"""The yardstick of the engine: how fast jobs larger than the card run.

    ./dev bench --engine [SECTION ...] [--quick] [--memory SIZE]
        [--host all|FACTOR] [--multiples M ...] [--ratios R ...]
        [--json FILE] [--before FILE]

Times are virtual, of the simulated device; numbers are off, so that operators
compute shapes only. README.md beside this file says what each figure is.

Thread-safety: a program of its own.
Lifetime: one run.
Errors: exit code 1 if a job was refused or died, 2 for bad arguments.
Invariants: each job has a process of its own.
"""

import argparse
import dataclasses
import os
import sys

from tests.system.speed import curve
from tests.system.speed import inference
from tests.system.speed import llama
from tests.system.speed import offload
from tests.system.speed import plans
from tests.system.speed import rows
from tests.system.speed import serving
from tests.system.speed import training
from tests.system.starved import tables
from tests.system.starved import zygote

_HERE = os.path.dirname(os.path.abspath(__file__))
_CARD = os.path.join(_HERE, "card.json")


def main(argv=None):
    plan, args = _arguments(argv)
    before = rows.read(args.before) if args.before else None
    # The card's own cuBLAS workspaces would be a part of a small card.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "128")
    zygote.prepare(numbers="off", profile=_CARD)
    found, red = [], False
    for section in args.sections:
        of_section = []
        for about, job, arguments in _SECTIONS[section](plan):
            try:
                of_section += job(plan, *arguments)
            except (zygote.Refused, zygote.Died) as error:
                print(f"RED {section} {about}: {str(error)[:800]}", flush=True)
                red = True
        print("\n".join(rows.table(of_section, before)), flush=True)
        found += of_section
    if args.json:
        tables.write_json(args.json, {
            "passes": {"warm_up": plan.warm_up, "measured": plan.measured,
                       "training_warm_up": plan.training_warm_up},
            "rows": found})
    red = red or any(row.get("faults") for row in found)
    return 1 if red else 0


def _inference(plan):
    for multiple in plan.multiples:
        for ratio in plan.ratios:
            yield (f"{multiple:g}x", inference.measure, (multiple, ratio))


def _llama(plan):
    for name, card, tokens in plan.llamas:
        yield f"{name}, {tokens} tokens", llama.measure, (name, card, tokens)


def _training(plan):
    for optimizer in plan.optimizers:
        for multiple in plan.training_multiples:
            for ratio in plan.training_ratios:
                yield (f"{optimizer} {multiple:g}x", training.measure,
                       (optimizer, multiple, ratio))


def _offload(plan):
    for multiple in plan.offload_multiples:
        yield f"{multiple:g}x", offload.measure, (multiple, 1.)


def _serving(plan):
    yield "8 threads", serving.measure, (1.,)


def _curve(plan):
    for percent in curve.PERCENT:
        yield f"{percent} %", curve.measure, (percent,)


_SECTIONS = {"inference": _inference, "llama": _llama,
             "training": _training, "offload": _offload,
             "serving": _serving, "curve": _curve}


def _arguments(argv):
    from stratalloc.sizes import parse_size

    parser = argparse.ArgumentParser(
        prog="./dev bench --engine", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION",
                        help=f"{', '.join(_SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true",
                        help="a card of 1 GiB and few jobs")
    parser.add_argument("--memory", type=parse_size, metavar="SIZE",
                        help="of the card (8GiB)")
    parser.add_argument("--curve-model", type=parse_size, metavar="SIZE",
                        help="the model of the curve (4GiB)")
    parser.add_argument("--width", type=int, help="of a layer (4096)")
    parser.add_argument("--host", metavar="all|FACTOR",
                        help="host budget: all of the model, or a multiple of "
                        "what the card lacks (1.25)")
    parser.add_argument("--multiples", type=float, nargs="+")
    parser.add_argument("--ratios", type=float, nargs="+",
                        help="compute time as a multiple of the bus time")
    parser.add_argument("--optimizers", nargs="+", metavar="NAME",
                        choices=list(training.jobs.OPTIMIZERS))
    parser.add_argument("--llamas", nargs="+", metavar="NAME",
                        choices=list(llama.SHAPES))
    parser.add_argument("--warm-up", type=int, help="passes before (12)")
    parser.add_argument("--measured", type=int, help="passes measured (4)")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    parser.add_argument("--before", metavar="FILE",
                        help="show this file's figures beside those measured")
    args = parser.parse_args(argv)
    for section in args.sections:
        if section not in _SECTIONS:
            parser.error(f"no such section: {section}")
    args.sections = args.sections or list(_SECTIONS)
    plan = plans.quick(plans.Plan()) if args.quick else plans.Plan()
    given = {"card": args.memory, "curve_model": args.curve_model,
             "width": args.width, "host": args.host,
             "multiples": args.multiples,
             "training_multiples": args.multiples,
             "offload_multiples": args.multiples, "ratios": args.ratios,
             "llamas": args.llamas and tuple(
                 one for one in plan.llamas if one[0] in args.llamas),
             "training_ratios": args.ratios, "optimizers": args.optimizers,
             "warm_up": args.warm_up, "training_warm_up": args.warm_up,
             "measured": args.measured}
    return dataclasses.replace(plan, **{
        name: value for name, value in given.items()
        if value is not None}), args


if __name__ == "__main__":
    sys.exit(main())
