# SPDX-License-Identifier: Apache-2.0
"""Compares the ledger with a recording of the same process:

    python -m tests.system.e2e.ledger_run [--only TEXT]

Each program of PROGRAMS and LONG runs in a process of its own under
`stratalloc.trace()`. Before each reset of peaks, and at the end, what the
ledger (`holders(at="peak")`) has for each owner and category at the peak is
compared with what a replay of the recording has there; at the end also what
each owner has on the device. `tree`, `peak`, `summary`, `fit` and the data of
the report's page are compared with the same rows.

Prints a table and each difference. Exit code 0: none; 1: some; 2: bad usage.
"""

import argparse
import contextlib
import dataclasses
import gc
import os
import random
import runpy
import sys
import time

from tests.system.starved import place
from tests.system.starved import zygote

_HERE = os.path.dirname(os.path.abspath(__file__))
_RING = 1 << 20  # events of a thread: none of these programs has more
_MARK = "ledger #"


@dataclasses.dataclass(frozen=True)
class Program:
    """`file` of this folder with its arguments, or a job of fit_jobs."""

    file: str
    arguments: tuple = ()
    memory: int = 256  # MiB
    host: int = 512  # MiB

    def __str__(self):
        name = os.path.splitext(os.path.basename(self.file))[0]
        return " ".join((name, *self.arguments))


def _each(file, cases, before=(), **place_):
    return [Program(file, (*before, case), **place_) for case in cases]


_SMALL = ("--device", "cuda", "--hidden", "128", "--heads", "4", "--layers",
          "3", "--words", "2000", "--steps", "3")
PROGRAMS = (
    Program("programs/attribution.py"),
    *_each("programs/mem_tracker.py", ("adam", "momentum", "checkpointed")),
    Program("programs/training.py", _SMALL, 12, 64),
    Program("programs/training.py", (*_SMALL, "--foreach", "default"), 12, 64),
    *_each("programs/list_operators.py", (
        "adamw", "adamw_fused", "sgd", "adafactor", "ema", "clip_norm",
        "scaler"), ("--device", "cuda"), memory=24),
    *_each("programs/list_frameworks.py", ("trainer", "lightning"),
           ("--device", "cuda"), memory=24),
    *_each("programs/evicted.py", (
        "thread", "side_stream", "state_dict", "save", "deepcopy",
        "in_place_no_grad", "in_place_data", "load_state_dict",
        "forward_backward", "module_argument", "graph"), memory=96),
    Program("programs/conservation.py", ("1", "6"), 24),
    Program("programs/stays_copies.py", ("look",), 256, 256),
    *_each("fit_jobs", (
        "convolutions", "adamw", "adam_one_by_one", "amp", "checkpointing",
        "lora", "generation", "two_streams"), memory=8 << 10),
)
# Those that take longest: the command runs them, the test does not.
LONG = tuple(_each("fit_jobs", ("accumulation", "inference", "evaluation",
                                "experts"), memory=8 << 10))


# ---- in the program's process -----------------------------------------------


class _Ledger:
    """What the ledger had of each device: at its peak, {(owner, category):
    bytes} for each mark of this device, and at the last one on the device."""

    def __init__(self):
        self.peaks, self.end = {}, {}

    def note(self, index):
        """Before the peaks of a device are reset, and at the end."""
        import stratalloc
        from stratalloc._native import core as _core

        rows = _core.held(index)["rows"]
        self.peaks.setdefault(index, []).append(_sums(rows, "at_peak"))
        self.end[index] = _sums(rows, "device")
        stratalloc.mark(f"{_MARK}{index}")

    def hear(self, torch):
        """Replaced: note() is called ahead of each reset of peaks."""
        from stratalloc._hooks.patching import Replaced

        def noting(original):
            def reset(index):
                self.note(int(index))
                return original(index)

            return reset

        hooks = Replaced()
        for name in ("_cuda_resetPeakMemoryStats",
                     "_accelerator_resetPeakStats"):
            hooks.replace(torch._C, name, noting)
        return hooks


def _devices():
    import torch

    import stratalloc

    return [index for index in range(torch.cuda.device_count())
            if torch.cuda.is_initialized() and stratalloc.report(index)]


def _sums(rows, name):
    found = {}
    for row in rows:
        if row[name]:
            key = row["owner"], row["category"]
            found[key] = found.get(key, 0) + row[name]
    return found


def _run(program):
    if program.file == "fit_jobs":
        from tests.system.e2e.programs import fit_jobs

        fit_jobs.JOBS[program.arguments[0]](random.Random(0))
        return
    path = os.path.join(_HERE, program.file)
    sys.argv = [path, *program.arguments]
    sys.path.insert(0, os.path.dirname(path))
    with contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")


def look(program):
    """What a program's ledger and recording have: a dict that the table and
    the test read."""
    import torch

    place.device(program.memory << 20, host_budget=program.host << 20)
    import stratalloc
    from stratalloc._native import core as _core
    from stratalloc._ownership import modules as _modules

    began = time.monotonic()
    _core.begin_recording(ring_events=_RING)
    ledger = _Ledger()
    with stratalloc.trace() as trace:
        hooks = ledger.hear(torch)
        _run(program)
        hooks.put_back()
        gc.collect()
        torch.cuda.synchronize()
        _modules.relabel_all()
        for index in _devices():
            ledger.note(index)
    found = _compared(ledger, trace.run())
    return found | {"program": str(program),
                    "seconds": time.monotonic() - began}


def _compared(ledger, run):
    """{"events", "peaks", "rows", "activations", "differences"}."""
    from stratalloc.telemetry import replay

    found = {"events": len(run.events), "peaks": 0, "rows": 0,
             "activations": 0, "differences": []}
    if run.dropped:
        found["differences"].append(f"{run.dropped} events are missing")
    for index in ledger.end:
        if not any(ledger.peaks[index]):
            continue  # a device that the program did not use
        walked = replay.Replay(run, index)
        ends = _marks(run, index)
        # Before a device is opened its marks have no sums, and no rows.
        expected = ledger.peaks[index][-len(ends):]
        begin = replay.BEFORE
        for end, peaks in zip(ends, expected):
            _compare_peak(found, walked, begin, end, peaks)
            begin = end
        _differ(found, f"device {index} at the end", ledger.end[index],
                _held(walked, ends[-1]))
        if len(ends) == 1:
            _compare_answers(found, walked, expected[-1])
    return found


def _marks(run, index):
    """Moments of the marks of note(): each device's sums follow its mark, up to
    the next mark, if the device is open."""
    from stratalloc.telemetry.model import Kind

    events = run.events
    totals = ((events["kind"] == Kind.TOTALS)
              & (events["device"] == index)).nonzero()[0]
    marks = (events["kind"] == Kind.MARK).nonzero()[0].tolist()
    found = []
    for at, following in zip(marks, [*marks[1:], len(events)]):
        if run.scopes[events["scope"][at]] != f"{_MARK}{index}":
            continue
        inside = totals[(totals > at) & (totals < following)]
        found += inside[:1].tolist()
    return found


def _compare_peak(found, walked, begin, end, expected):
    curve = walked.allocated
    moment = begin
    if end > begin:
        first = begin + 1 + int(curve.after[begin + 1:end + 1].argmax())
        if curve.at(first) > curve.at(begin):
            moment = first
    held = _held(walked, moment)
    found["peaks"] += 1
    found["activations"] += sum(size for (_, category), size in held.items()
                                if category == "activation")
    _differ(found, f"device {walked.index} at peak {found['peaks']}", expected,
            held)
    _differ(found, f"curves at peak {found['peaks']}",
            _by_category(expected), _curves(walked, moment))


def _held(walked, moment):
    """{(owner, category): bytes} of a replay."""
    from stratalloc.telemetry import model

    found = {}
    for one in walked.holders(moment):
        key = walked.run.scopes[one.scope], model.CATEGORIES[one.category]
        found[key] = found.get(key, 0) + one.bytes
    return found


def _curves(walked, moment):
    from stratalloc.telemetry import model
    from stratalloc.telemetry.exports import samples

    sums = {model.CATEGORIES[category]: curve.at(moment)
            for category, curve in samples.by_category(walked).items()}
    return {name: size for name, size in sums.items() if size}


def _by_category(held):
    found = {}
    for (_, category), size in held.items():
        found[category] = found.get(category, 0) + size
    return found


def _compare_answers(found, walked, expected):
    """What the commands say of the whole recording."""
    from stratalloc.telemetry.analysis import owners
    from stratalloc.telemetry.analysis.fit import fit
    from stratalloc.telemetry.analysis.summary import summary
    from stratalloc.telemetry.report.data import data

    run, index = walked.run, walked.index
    peak = sum(expected.values())
    _differ(found, "tree", expected, {
        (row.name, row.category): row.bytes
        for row in owners.tree(run, index).rows})
    _differ(found, "peak --by category", _by_category(expected), {
        row.category: row.bytes
        for row in owners.peak(run, index, by="category").rows})
    said = next(one for one in summary(run).devices if one["device"] == index)
    _differ(found, "summary", peak, said["allocated"]["peak"])
    page = next(one for one in data([("run", run)])["runs"][0]["devices"]
                if one["index"] == index)
    _compare_page(found, page, expected)
    if not place.moved()["out"]:
        _differ(found, "fit", peak, fit(
            run, 1 << 40, device=index).peak_allocated)


def _compare_page(found, page, expected):
    timeline = page["timeline"]
    peak = timeline["allocated"].index(max(timeline["allocated"]))
    sums = {name: values[peak] for name, values
            in timeline["categories"].items() if values[peak]}
    _differ(found, "the page's timeline", _by_category(expected), sums)
    here = {}
    for _, category, size, *_ in page["residency"]["peak"]:
        here[category] = here.get(category, 0) + size
    _differ(found, "the page's layers", _by_category(expected),
            {category: size for category, size in here.items() if size})


def _differ(found, where, ledger, recording):
    if not isinstance(ledger, dict):
        ledger, recording = {"bytes": ledger}, {"bytes": recording}
    found["rows"] += len(ledger)
    for key in sorted({**ledger, **recording}, key=str):
        one, other = ledger.get(key, 0), recording.get(key, 0)
        if one != other:
            found["differences"].append(
                f"{where}: {key}: {one} in the ledger, {other} in the "
                "recording")


# ---- the table --------------------------------------------------------------


def prepare():
    """Loads the simulated device and what programs import; before rows()."""
    zygote.prepare(devices=2)


def rows(programs):
    """Yields what look() says of each program."""
    for program in programs:
        try:
            yield zygote.run(look, program)
        except (zygote.Refused, zygote.Died) as error:
            trace = getattr(error, "trace", "")
            yield {"program": str(program), "events": 0, "peaks": 0, "rows": 0,
                   "activations": 0, "seconds": 0.,
                   "differences": [f"it did not run: {error}\n{trace}"]}


HEADING = (f"{'program':44} {'events':>8} {'peaks':>5} {'rows':>6} "
           f"{'activations':>12} {'differences':>11}  seconds")


def line(row):
    return (f"{row['program'][:44]:44} {row['events']:8} {row['peaks']:5} "
            f"{row['rows']:6} {row['activations']:12} "
            f"{len(row['differences']):11}  {row['seconds']:.1f}")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tests.system.e2e.ledger_run")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="programs whose line contains it")
    only = parser.parse_args(arguments).only
    chosen = [program for program in (*PROGRAMS, *LONG)
              if only in str(program)]
    if not chosen:
        parser.error(f"no program's line contains {only!r}")
    prepare()
    print(HEADING)
    differences = 0
    for row in rows(chosen):
        print(line(row), flush=True)
        for difference in row["differences"]:
            print("   ", difference, flush=True)
        differences += len(row["differences"])
    print(f"{len(chosen)} programs, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
