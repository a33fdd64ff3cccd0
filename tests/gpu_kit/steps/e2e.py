# SPDX-License-Identifier: Apache-2.0
"""One file of the end-to-end tests (tests/system/e2e), on this device, case by case.

On the simulated device the first case only: `./dev test` runs all of them
there, and takes its time.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from tests.gpu_kit import answer
from tests.gpu_kit import place

ASKED = "Do whole programs work here as on the simulated device?"


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
    done = _pytest(said, f"--junitxml={xml}", *wanted)
    if not os.path.exists(xml):
        said.failed(f"pytest ended with {done.returncode}: "
                    f"{done.stdout[-2000:]}")
        return
    cases = list(ElementTree.parse(xml).iter("testcase"))
    for case in cases:
        for kind in ("failure", "error"):
            for problem in case.findall(kind):
                said.failed(f"{case.get('name')}: "
                            f"{problem.get('message', '')[:500]}")
        for skipped in case.findall("skipped"):
            said.note(f"{case.get('name')} is skipped: "
                      f"{skipped.get('message')}")
    said.figure("cases", len(cases), "cases")
    said.promise("pytest ends well", done.returncode == 0,
                 f"exit code {done.returncode}: {done.stdout[-2000:]}")


def _pytest(said, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         f"--rootdir={place.ROOT}", *arguments], cwd=place.ROOT,
        env={**os.environ, "STRATALLOC_TEST_DEVICE": said.device},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False)


if __name__ == "__main__":
    answer.main(run, ASKED)
