# SPDX-License-Identifier: Apache-2.0
"""The demo: a model on a card that is too small for it, under our allocator."""

import json
import os
import subprocess
import sys

from tests.gpu_kit import answer

ASKED = "Does the demo's model give its numbers on a part of the card?"
# Less than the model's 87 MiB beside what cuBLAS keeps, 32 MiB on an H100.
_GPU_MEMORY = {"cuda": "96MiB", "sim": "64MiB"}
_TOLERANCE = 1e-3  # a GPU's own kernels against the CPU's


def run(said):
    work = os.environ["KIT_WORK"]
    out = os.path.join(work, "demo.json")
    environment = {**os.environ}
    source = os.environ.get("KIT_MODEL_FILES")
    if source is not None:
        folder = os.path.join(work, "stand_in")
        done = _python(["-m", "tests.gpu_kit.stand_in", source, folder],
                       environment)
        if done.returncode != 0:
            raise answer.NotHere("there are no weights, and random ones cannot "
                                 f"be made: {done.stdout[-600:]}")
        environment["PYTHONPATH"] = os.pathsep.join(
            [folder, environment["PYTHONPATH"]])
    said.note(f"weights: {os.environ.get('KIT_WEIGHTS', 'none are here')}")
    done = _python(["-m", "stratalloc", "demo", "--device", said.device,
                    "--gpu-memory", _GPU_MEMORY[said.device], "--json", out],
                   environment)
    said.promise("the demo comes to its end", done.returncode == 0,
                 f"exit code {done.returncode}: {done.stdout[-1500:]}")
    with open(out, encoding="utf-8") as file:
        found = json.load(file)
    said.table("result", [found])
    difference = found["max_abs_diff_vs_cpu"]
    said.promise("its numbers are the CPU's", difference <= (
        0 if said.simulated else _TOLERANCE), f"{difference} apart")
    said.figure("largest difference from the CPU", float(difference), "")


def _python(arguments, environment):
    return subprocess.run(
        [sys.executable, *arguments], env=environment, text=True,
        errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    answer.main(run, ASKED)
