# SPDX-License-Identifier: Apache-2.0
"""What CUDA does here, check by check (tests/simulator/conformance).

On a real device an unverified check that does not hold fails nothing: it is
what the run is to find out, and a difference of the simulated device, which
all checks hold on. An answer that the suite knows of a driver, where the
simulated device is stricter, is listed and no difference. A documented check
that does not hold is a failed step.
"""

import glob
import importlib.util
import os
import subprocess

from tests.gpu_kit import answer
from tests.gpu_kit import place

ASKED = "Which of the checked facts about CUDA hold on this driver?"
_SECONDS = 440


def run(said):
    cuda, cudart = libraries(said.simulated)
    out = os.path.join(os.environ["KIT_WORK"], "conformance.json")
    if os.path.exists(out):
        os.remove(out)  # of an earlier run
    command = [os.path.join(os.environ["KIT_FOLDER"], "conformance"), "--cuda",
               cuda, "--cudart", cudart, "--quiet", "--json", out]
    settings = {}
    if said.simulated:
        command.append("--strict")
        settings = {"CUDASIM_MODE": "async", "CUDASIM_DEVICES": "2"}
    done = subprocess.run(
        command, env={**os.environ, **settings}, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        timeout=_SECONDS, stdin=subprocess.DEVNULL)
    found = place.load(out)
    checks = found.pop("checks", [])
    said.table("device", [found.get("facts", {})])
    said.table("areas", [{"area": area, **counts}
                         for area, counts in found.get("areas", {}).items()])
    if not checks:
        said.failed(f"no checks: exit code {done.returncode}, "
                    f"{found.get('error', '')} {done.stdout[-1000:]}")
        return
    said.figure("checks", len(checks), "checks")
    other = [check for check in checks
             if not check["ok"] or check["known"]
             or check["kind"] in ("skip", "died")]
    said.table("checks that do not hold, were not asked, or are known to differ",
               other)
    for check in other:
        if check["known"]:
            continue
        words = (f"{check['id']}: {check['actual']} here, "
                 f"{check['expected']} on the simulated device")
        if check["kind"] == "documented":
            said.failed(words)
        elif check["kind"] == "believed":
            said.differs(words)
        elif check["kind"] == "died":
            said.failed(f"{check['id']}: {check['actual']}")
    said.promise("the program came to its end",
                 done.returncode in (0, 1), f"exit code {done.returncode}")


def libraries(simulated):
    """The driver and the runtime to look at: the real driver by its name and
    the runtime that torch brings, or the simulated pair."""
    if simulated:
        folder = os.path.join(os.environ["KIT_SITE"], "stratalloc_cudasim",
                              "lib")
        return (os.path.join(folder, "libcuda.so.1"),
                os.path.join(folder, "libcudart.so.13"))
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = glob.glob(os.path.join(folder, "*", "lib", "libcudart.so.13"))
        if found:
            return "libcuda.so.1", found[0]
    return "libcuda.so.1", "libcudart.so.13"


if __name__ == "__main__":
    answer.main(run, ASKED)
