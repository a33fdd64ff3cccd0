# SPDX-License-Identifier: Apache-2.0
"""What a million events take in each format: to write, to check, to read.

    PYTHONPATH=ROOT:SITE python million.py tests/repository/figures/exports.json

of the repository's root and of //tests/simulator/cudasim/package:site (see CONTRIBUTING.md,
"One test"). Each row is a process of its own, which has done the same for a
small run before; seconds of the processor, what the process grew by, the file's
size. Our own format is that of a program of the simulated device: it is what is
in the rings that becomes a file.
"""

import json
import os
import pathlib
import platform
import sys
import tempfile
import threading
import time

import formats
import made_runs
from stratalloc.telemetry import files
from stratalloc.telemetry.analysis import fit, owners, summary
from stratalloc.telemetry.report import page
from stratalloc.telemetry.report.fitting import fitting

EVENTS, MARKS = 1_000_000, 1000
_OURS = "recording, from the rings"
_CAPACITY = 64 << 30
_READ = {"recording, read": files.load, "snapshot.pickle, read": files.load}
_ANSWERS = {"summary": lambda run: summary.summary(run).text(),
            "peak": lambda run: owners.peak(run).text(),
            "fit": lambda run: fit.fit(run, _CAPACITY).text()}


def _took(work):
    """(seconds, bytes that the process grew by) of a call."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak is what is there now
    before, began = _peak(), time.process_time()
    work()
    return time.process_time() - began, _peak() - before


def _peak():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file
                    if line.startswith("VmHWM"))


def _apart(measure):
    """What measure() returns, of a child that has what we have."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(write, "w") as out:
                json.dump(measure(), out)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said)


def _exported(run, small, name, folder):
    formats.export(small, name, folder)
    seconds, grew = _took(lambda: formats.export(run, name, folder))
    return {"seconds": seconds, "grew": grew,
            "bytes": (folder / name).stat().st_size}


def _checked(small, name, folder):
    """Of the million's file, after that of a small one."""
    (folder / "small").mkdir(exist_ok=True)
    formats.wrong(formats.export(small, name, folder / "small"))
    seconds, grew = _took(lambda: formats.wrong(folder / name))
    return {"check_seconds": seconds, "check_grew": grew}


def _reported(run, small, folder):
    path = folder / "report.html"
    page.write(fitting([("small", small)]), path)
    seconds, grew = _took(lambda: page.write(fitting([("run", run)]), path))
    return {"seconds": seconds, "grew": grew, "bytes": path.stat().st_size}


def _recorded(path):
    """Of as many events in the rings of threads, each of which has room."""
    from stratalloc import simulate

    simulate.load("256MiB")
    import torch
    import stratalloc

    assert stratalloc.enable()
    torch.cuda.init()

    def allocate():
        for _ in range(EVENTS // 10 // 3):
            torch.empty(700, dtype=torch.uint8, device="cuda")

    trace = stratalloc.trace(path)
    trace.__enter__()
    for _ in range(10):
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
    seconds, grew = _took(lambda: trace.__exit__(None, None, None))
    run = files.load(path)
    assert not run.dropped
    return {"seconds": seconds, "grew": grew, "events": len(run.events),
            "bytes": os.path.getsize(path)}


def measured(folder):
    """{row: what it took}."""
    ours = folder / "run.strata"
    # First: who has made the simulated device's allocator cannot fork.
    rows = {_OURS: _apart(lambda: _recorded(ours))}
    run, small = made_runs.many(EVENTS, marks=MARKS), made_runs.story()
    for name in formats.WRITERS:
        rows[name] = _apart(lambda: _exported(run, small, name, folder))
        rows[name].update(_apart(lambda: _checked(small, name, folder)))
    for name, read in _READ.items():
        path = folder / name.partition(",")[0].replace("recording",
                                                       "run.strata")
        rows[name] = _apart(lambda: dict(zip(
            ("seconds", "grew"), _took(lambda: read(path)))))
    for name, answer in _ANSWERS.items():
        def work():
            answer(small)
            return dict(zip(("seconds", "grew"), _took(lambda: answer(run))))
        rows[name] = _apart(work)
    rows["report.html"] = _apart(lambda: _reported(run, small, folder))
    return rows


def _machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.partition(":")[2].strip() for line in file
                     if line.startswith("model name")), platform.machine())
    return {"cores": len(os.sched_getaffinity(0)), "cpu": name,
            "python": platform.python_version()}


def main():
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(pathlib.Path(folder))
    made = {"machine": _machine(), "events": EVENTS, "marks": MARKS,
            "rows": rows}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
