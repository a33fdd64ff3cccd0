# SPDX-License-Identifier: Apache-2.0
"""The kit as a machine with a GPU runs it, on the simulated device.

    python -m tests.gpu_kit.rehearsal [--steps A,B] [--quick]

Packs it, unpacks it in an empty folder and runs its steps there. Ends with 1
and a sentence for each step that is not as it should be: every one has a
verdict, none differs or fails, and one that is not run says that the simulated
device cannot run it. For want of a package none is left out.
"""

import argparse
import sys
import tempfile

from tests.gpu_kit import catalogue
from tests.gpu_kit import record
from tests.gpu_kit import unpacked

_OUT = "result.json"
_CANNOT = "not on the simulated device"


def complaints(code, result, names):
    """What is not as it should be after the kit has ended with `code`."""
    found = [] if code == 0 else [f"the kit ended with {code}, not with 0"]
    found += [f"it differs: {sentence}" for sentence in result["differences"]]
    for name in names:
        step = result["steps"].get(name, {"verdict": "none"})
        said = " ".join(step.get("sentences", ()))
        if step["verdict"] == record.OK or (
                step["verdict"] == record.NOT_HERE
                and said.startswith(_CANNOT)):
            continue
        found.append(f"{name}: the verdict is {step['verdict']}: {said}")
    return found


def run(folder, names, *arguments):
    """Runs these steps in an empty folder; what the kit printed, and the
    complaints."""
    kit = unpacked.Unpacked(folder)
    steps = catalogue.named(names)
    done = kit.run(_OUT, "--device", "sim", "--steps", ",".join(names),
                   *arguments, seconds=sum(step.limit for step in steps))
    printed = done.stdout + done.stderr
    try:
        result = kit.result(_OUT)
    except OSError as error:
        return printed, [f"the kit ended with {done.returncode} and wrote "
                         f"nothing: {error}"]
    return printed, complaints(done.returncode, result, names)


def main():
    every = [step.name for step in catalogue.STEPS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu_kit.rehearsal", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default=",".join(every), metavar="A,B")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        printed, found = run(folder, args.steps.split(","),
                             *["--quick"] * args.quick)
    print(printed)
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
