# SPDX-License-Identifier: Apache-2.0
"""Asks the worker for rounds, prints a table, writes the JSON."""

import json
import os
import platform
import statistics
import subprocess
import sys

from stratalloc import cli
from stratalloc.bench import snapshots
from stratalloc.demo.phases import package_environment

# Goals of the project's design, section 10: a ratio for pairs (against
# native), else nanoseconds.
_PAIR_SIZES = ((512, "512 B"), (64 << 10, "64 KiB"), (4 << 20, "4 MiB"))
_PAIR_GOAL = 0.25
_SCOPE_CORE_GOAL = 15.0
_SCOPE_PYTHON_GOAL = 150.0
_GUARD_GOAL = 100.0
_GUARD_ELEMENT_GOAL = 5.0
_LIST = 200
# Of the simulated device: how much slower than the CPU a model may be on it.
_SIMULATED_GOAL = 1.5


class _Worker:
    """The measuring process."""

    def __init__(self, device):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stratalloc.bench.worker", "--device",
             device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=package_environment())

    def ask(self, measure, **values):
        try:
            self._process.stdin.write(
                json.dumps({"measure": measure, **values}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise cli.CannotRunError(
                "stratalloc: a benchmark process ended with code "
                f"{self._process.wait()}; its reason is above")
        answer = json.loads(line)
        if "error" in answer:
            raise cli.CannotRunError(
                f"stratalloc: {measure}: {answer['error']}")
        return answer

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def main(args):
    if args.rounds < 1:
        raise cli.UsageError("--rounds must be at least 1")
    out = cli.console(stderr=args.json == "-")
    worker = _Worker(args.device)
    try:
        benchmarks = list(_benchmarks(worker, args.rounds))
        benchmarks += snapshots.lines(entry, args.device, args.rounds)
        if args.device == "sim":
            benchmarks += _simulated(worker, args.rounds)
        counters = worker.ask("counters")
    finally:
        worker.close()
    values = {"machine": machine(args.device), "commit": commit(),
              "rounds": args.rounds, "benchmarks": benchmarks,
              "counters": counters}
    out.print(_table(values))
    if args.json:
        cli.write_json(args.json, values)
    return cli.EXIT_OK


def _benchmarks(worker, rounds):
    def ask(measure, baseline=None, **values):
        answers = [worker.ask(measure, **values) for _ in range(rounds)]
        ours = [answer["ours"] for answer in answers]
        if baseline is None:
            return ours
        return ours, [answer[baseline] for answer in answers]

    for size, name in _PAIR_SIZES:
        yield entry(f"malloc/free {name}",
                    *ask("pair", "native", size=size, count=20000), "native",
                    ratio_goal=_PAIR_GOAL)
    if worker.ask("scope_core", count=1000)["ours"] is not None:
        yield entry("push+pop, C++", ask("scope_core", count=1000000),
                    goal=_SCOPE_CORE_GOAL)
    yield entry("push+pop, Python", ask("scope", count=100000),
                goal=_SCOPE_PYTHON_GOAL)
    yield entry("nn.Module call",
                *ask("module", "plain", count=50000), "no wrapper")
    yield entry("op guard, two tensors",
                *ask("guard", "plain", elements=0, count=20000), "no guard",
                difference_goal=_GUARD_GOAL)
    yield entry(f"op guard, list of {_LIST}",
                *ask("guard", "plain", elements=_LIST, count=2000), "no guard",
                difference_goal=_GUARD_GOAL + _LIST * _GUARD_ELEMENT_GOAL)


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


def _table(values):
    from rich import box
    from rich.table import Table

    where = values["machine"]["device"]
    table = Table(title=f"{where} device, {values['rounds']} rounds, medians",
                  box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False,
                  collapse_padding=True)
    table.add_column("benchmark", no_wrap=True)
    for name in ("ours, ns", "spread", "baseline, ns", "ratio", "goal", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in values["benchmarks"]:
        difference = row.get("difference")
        table.add_row(
            row["name"],
            f"{row['value']:.0f}"
            + (f" ({difference:+.0f})" if difference is not None else ""),
            "-" if row["spread"] is None else f"±{100 * row['spread']:.0f}%",
            "-" if row["baseline"] is None else
            f"{row['baseline_name']} {row['baseline']:.0f}",
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}x",
            row["goal"] or "-",
            {True: "held", False: "missed", None: ""}[row["pass"]])
    return table
