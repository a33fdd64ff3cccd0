# SPDX-License-Identifier: Apache-2.0
"""Asks the worker for rounds, prints a table, writes the JSON."""

import json
import os
import platform
import statistics
import subprocess
import sys

from stratalloc import simulate
from stratalloc._terminal import command as _command
from stratalloc.bench import allocations
from stratalloc.bench import attribution_lines
from stratalloc.bench import disk
from stratalloc.bench import levels
from stratalloc.bench import snapshots
from stratalloc.bench import start
from stratalloc.bench import tracing
from stratalloc.demo.phases import package_environment

# Goals in nanoseconds; those of pairs are ratios and in allocations.py.
_SCOPE_CORE_GOAL = 15.0
_SCOPE_PYTHON_GOAL = 150.0
_GUARD_GOAL = 100.0
_GUARD_ELEMENT_GOAL = 5.0
_LIST = 200
# Of the simulated device: how much slower than the CPU a model may be on it.
_SIMULATED_GOAL = 1.5


class _Worker:
    """The measuring process."""

    def __init__(self, device, *options, call_ns=0):
        environment = package_environment()
        for name in ("STRATALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stratalloc.bench.worker", "--device",
             device, "--call-ns", str(call_ns), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment)

    def ask(self, measure, **values):
        try:
            self._process.stdin.write(
                json.dumps({"measure": measure, **values}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise _command.CannotRunError(
                "stratalloc: a benchmark process ended with code "
                f"{self._process.wait()}; its reason is above")
        answer = json.loads(line)
        if "error" in answer:
            raise _command.CannotRunError(
                f"stratalloc: {measure}: {answer['error']}")
        return answer

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def main(args):
    if args.rounds < 1:
        raise _command.UsageError("--rounds must be at least 1")
    trace_files = [os.path.abspath(path) for path in args.trace]
    for path in trace_files:
        if not os.path.isfile(path):
            raise _command.UsageError(f"--trace {path}: there is no such file")
    if args.device == "sim":
        simulate.package()
    _command.refuse_forbidden("bench")
    out = _command.console()
    values = {"machine": machine(args.device), "commit": commit(),
              "rounds": args.rounds, "benchmarks": []}
    for group, tiering, call_ns in _GROUPS[args.device]:
        rows = _allocations(args, group, tiering, call_ns, trace_files)
        _show(out, values, group, rows)
    worker = _Worker(args.device)
    try:
        rows = attribution_lines.measured(worker, entry, args.rounds)
        _show(out, values, "attribution, and its share of a training step", rows,
              attribution_lines.COLUMNS, attribution_lines.cells)
        _show(out, values, levels.GROUP,
              list(levels.lines(worker, entry, args.rounds)))
        _show(out, values, disk.GROUP,
              list(disk.lines(worker, entry, args.rounds)), disk.COLUMNS,
              disk.cells)
        native = _Worker(args.device, "--native")
        try:
            _show(out, values, tracing.GROUP,
                  list(tracing.lines(native, worker, entry, args.rounds)),
                  tracing.COLUMNS, tracing.cells)
        finally:
            native.close()
        rows = list(_benchmarks(worker, args.rounds))
        rows += snapshots.lines(entry, args.device, args.rounds)
        rows.append(start.line(entry, args.rounds))
        if args.device == "sim":
            rows += _simulated(worker, args.rounds)
        values["counters"] = worker.ask("counters")
    finally:
        worker.close()
    _show(out, values, "scopes, operators, the simulated device", rows)
    written = args.json is None or args.json.write(values)
    return _command.EXIT_OK if written else _command.EXIT_FAILED


# (title, tiering, what a simulated call costs in ns)
_GROUPS = {
    "sim": (("allocations, tiering on", "on", 0),
            ("allocations, tiering off", "off", 0),
            ("allocations, tiering on, CUDA calls cost 300 ns", "on", 300)),
    "cuda": (("allocations, tiering on", "on", 0),
             ("allocations, tiering off", "off", 0)),
}


def _show(out, values, group, rows, columns=None, cells=None):
    for row in rows:
        row["group"] = group
    values["benchmarks"] += rows
    if columns is None:
        columns, cells = _columns(rows)
    _command.show(out, _table(values, group, rows, columns, cells))


def _allocations(args, group, tiering, call_ns, trace_files):
    worker = _Worker(args.device, "--allocations", "--tiering", tiering,
                     call_ns=call_ns)
    try:
        rows = []
        for name, unit, request, goal in allocations.cases(trace_files):
            # The first round makes segments and touches everything once.
            worker.ask("allocations", prepare=True, **request)
            answers = [worker.ask("allocations", ours_first=i % 2 == 0,
                                  **request) for i in range(args.rounds)]
            rows.append(_against_native(name, unit, answers, goal))
        return rows
    finally:
        worker.close()


def _against_native(name, unit, answers, goal):
    """The line of one case.

    The ratio is the median of the rounds' ratios: what slows the machine down
    for a while slows both halves of a round. Its tenth and ninetieth
    percentiles are the spread.
    """
    def column(key):
        return [answer[key] for answer in answers]

    ratios = [ours / native
              for ours, native in zip(column("ours"), column("native"))]
    row = entry(name, column("ours"), column("native"), "native")
    row["per"] = unit
    row["ratio"] = statistics.median(ratios)
    row["ratio_low"], row["ratio_high"] = _tails(ratios)
    for side in ("ours", "native"):
        calls = column(side + "_calls")
        row[side + "_calls"] = (None if None in calls
                                else statistics.median(calls))
    if goal is not None:
        row["goal"] = f"<= {goal}x"
        row["pass"] = row["ratio"] <= goal
    return row


def _tails(values):
    if len(values) < 2:
        return values[0], values[0]
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def _benchmarks(worker, rounds):
    def ask(measure, baseline=None, **values):
        answers = [worker.ask(measure, **values) for _ in range(rounds)]
        ours = [answer["ours"] for answer in answers]
        if baseline is None:
            return ours
        return ours, [answer[baseline] for answer in answers]

    yield entry("push+pop, C++", ask("scope_core", count=1000000),
                goal=_SCOPE_CORE_GOAL)
    yield entry("push+pop, Python", ask("scope", count=100000),
                goal=_SCOPE_PYTHON_GOAL)
    for what, elements, count, goal in (
        ("two tensors", 0, 20000, _GUARD_GOAL),
        (f"list of {_LIST}", _LIST, 2000,
         _GUARD_GOAL + _LIST * _GUARD_ELEMENT_GOAL),
    ):
        handles = worker.ask("guard", elements=elements, count=1)["handles"]
        yield entry(f"op guard, {what} in {handles} handles",
                    *ask("guard", "plain", elements=elements, count=count),
                    "no guard", difference_goal=goal)


def _simulated(worker, rounds):
    """What the simulated device costs a user's tests."""
    answers = [worker.ask("minilm") for _ in range(rounds)]
    if answers[0]["ours"] is None:
        return []
    return [entry("MiniLM, 24 sentences, simulated",
                  [answer["ours"] for answer in answers],
                  [answer["cpu"] for answer in answers], "CPU",
                  ratio_goal=_SIMULATED_GOAL)]


def entry(name, ours, baseline=None, baseline_name=None, goal=None,
          ratio_goal=None, difference_goal=None):
    """One benchmark: medians, spread and whether the goal is held.

    `spread` is half the distance between the quartiles over the median. With
    `difference_goal` the value is ours minus baseline.
    """
    value = statistics.median(ours)
    base = None if baseline is None else statistics.median(baseline)
    result = {"name": name, "value": value, "unit": "ns", "baseline": base,
              "baseline_name": baseline_name,
              "ratio": value / base if base else None,
              "goal": goal, "pass": None, "spread": spread(ours),
              "baseline_spread": None if base is None else spread(baseline)}
    if ratio_goal is not None:
        result["goal"] = f"<= {ratio_goal}x"
        result["pass"] = result["ratio"] <= ratio_goal
    elif difference_goal is not None:
        result["difference"] = value - base
        result["goal"] = f"<= +{difference_goal:g}"
        result["pass"] = result["difference"] <= difference_goal
    elif goal is not None:
        result["goal"] = f"<= {goal:g}"
        result["pass"] = value <= goal
    return result


def spread(values):
    if len(values) < 4:
        return None
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle if middle else None


def machine(device):
    """What the figures depend on; no name of the host."""
    model = platform.processor()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines
                          if line.startswith("model name")), model)
    except OSError:
        pass
    import importlib.metadata

    return {"cpu": model, "cores": os.cpu_count(),
            "kernel": platform.release(), "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "device": "simulated" if device == "sim" else _gpu_name()}


def _gpu_name():
    import torch

    return torch.cuda.get_device_name(0)


def commit():
    """The checked-out commit if the package lies in one; else None."""
    try:
        done = subprocess.run(
            ["git", "-C", os.path.dirname(os.path.abspath(__file__)),
             "rev-parse", "HEAD"], capture_output=True, text=True,
            check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def _table(values, group, rows, columns, cells):
    from rich import box
    from rich.table import Table

    where = values["machine"]["device"]
    table = Table(
        title=f"{group}: {where} device, {values['rounds']} rounds, medians",
        box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False,
        collapse_padding=True)
    for i, name in enumerate((*columns, "goal", "")):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row), row["goal"] or "-",
                      {True: "held", False: "missed", None: ""}[row["pass"]])
    return table


def _columns(rows):
    """(their names, what they say of a line), without the goal."""
    # Where CUDA calls are counted there is a ratio per round, too.
    counted = any(row.get("ratio_low") is not None for row in rows)

    def cells(row):
        difference = row.get("difference")
        yield row["name"]
        yield f"{row['value']:.0f}" + (
            f" ({difference:+.0f})" if difference is not None else "")
        yield ("-" if row["baseline"] is None else
               f"{row['baseline_name']} {row['baseline']:.0f}")
        yield "-" if row["ratio"] is None else f"{row['ratio']:.2f}x"
        if counted:
            yield f"{row['ratio_low']:.2f}-{row['ratio_high']:.2f}"
            yield ("-" if row["ours_calls"] is None else
                   f"{row['ours_calls']:.2g} : {row['native_calls']:.2g}")
        else:
            yield ("-" if row["spread"] is None
                   else f"±{100 * row['spread']:.0f}%")

    return ("benchmark", "ours, ns", "baseline, ns", "ratio",
            *(("10-90%", "calls") if counted else ("spread",))), cells
