# SPDX-License-Identifier: Apache-2.0
"""What is made of a bundle's recording, in a process of its own (bundle.py).

Each file is made beside its name and renamed when it is whole, so that ending
this process leaves no half of one under a name that is looked for. Says on
stdout, as JSON, why others are not there. Imports no torch.
"""

import functools
import json
import os
import sys


def main(argv):
    """argv: the bundle's folder, then names of files."""
    folder, *names = argv
    run = functools.cache(functools.partial(
        _run, os.path.join(folder, "run.strata")))
    why = {}
    for name in names:
        target = os.path.join(folder, name)
        half = os.path.join(folder, f"half.{name}")
        try:
            _make(name, run, half)
            os.rename(half, target)
        except Exception as error:  # pylint: disable=broad-exception-caught
            # One converter's fault is not the others'.
            why[name] = f"{type(error).__name__}: {error}"
            if os.path.exists(half):
                os.unlink(half)
    print(json.dumps(why))
    sys.stdout.flush()


def _run(path):
    from stratalloc.telemetry import recording

    return recording.read(path)


def _make(name, run, path):
    if name == "report.html":
        from stratalloc.telemetry.report import page
        from stratalloc.telemetry.report.fitting import fitting

        page.write(fitting([("run.strata", run())]), path)
        return
    from stratalloc.telemetry import formats

    formats.write("perfetto" if name.endswith(".pftrace") else "speedscope",
                  run(), path)
