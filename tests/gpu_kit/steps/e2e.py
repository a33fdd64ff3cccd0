# SPDX-License-Identifier: Apache-2.0
"""One file of the end-to-end tests (tests/system/e2e), on this device, case by case.

On the simulated device the first case only: `./dev test` runs all of them
there, and takes its time. Under --quick the cases with the mark `long` are left
out.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from tests.gpu_kit import answer
from tests.gpu_kit import place

ASKED = "Do whole programs work here as on the simulated device?"
_NO_CASES = 5  # pytest's exit code
_KEPT = 1500  # characters of a failing case, from either end


def run(said):
    path = os.path.join(place.ROOT, "tests", "system", "e2e", f"{said.of}_test.py")
    xml = os.path.join(os.environ["KIT_WORK"], f"e2e-{said.of}.xml")
    if os.path.exists(xml):
        os.remove(xml)
    wanted = [path]
    if said.simulated:
        listed = _pytest(said, "--collect-only", path)
        wanted = [line for line in listed.stdout.splitlines() if "::" in line]
        said.note(f"one of {len(wanted)} cases")
        wanted = wanted[:1]
        if not wanted:  # of no arguments pytest would run everything
            if not (said.quick and listed.returncode == _NO_CASES):
                said.failed("pytest lists no case: "
                            + place.shortened(listed.stdout, _KEPT, _KEPT))
            return
    done = _pytest(said, f"--junitxml={xml}", *wanted)
    if done.returncode != 0:
        print(done.stdout, flush=True)
    if done.returncode == _NO_CASES and said.quick:
        said.note("every case is long")
        return
    if not os.path.exists(xml):
        said.failed(f"pytest ended with {done.returncode}: "
                    f"{place.shortened(done.stdout, _KEPT, _KEPT)}")
        return
    cases = list(ElementTree.parse(xml).iter("testcase"))
    for case in cases:
        for kind in ("failure", "error"):
            for problem in case.findall(kind):
                text = place.shortened(_why(problem), _KEPT, _KEPT)
                said.failed(f"{case.get('name')}: {text}")
        for skipped in case.findall("skipped"):
            said.note(f"{case.get('name')} is skipped: "
                      f"{skipped.get('message')}")
    said.figure("cases", len(cases), "cases")
    said.promise("pytest ends well", done.returncode == 0,
                 f"exit code {done.returncode}")


def _why(problem):
    """The whole message: pytest may cut the one in the attribute."""
    said = [line[1:].strip() for line in (problem.text or "").splitlines()
            if line[:2].strip() == "E"]
    return "\n".join(said) or problem.get("message", "")


def _pytest(said, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-o", "markers=long: not with --quick",
         *(["-m", "not long"] if said.quick else []),
         f"--rootdir={place.ROOT}", *arguments], cwd=place.ROOT,
        env={**os.environ, "STRATALLOC_TEST_DEVICE": said.device},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False)


if __name__ == "__main__":
    answer.main(run, ASKED)
