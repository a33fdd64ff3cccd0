# SPDX-License-Identifier: Apache-2.0
"""A profile of this card (card_profile.py), beside the simulated card's own.

`result` of the table is what CUDASIM_PROFILE and `stratalloc run --profile`
take, so that the simulated device keeps this card's time.
"""

import json
import os
import subprocess
import sys

from tests.gpu_kit import answer

ASKED = "How fast is the card, and what do its context and its calls take?"
# Figure -> unit; all others of the profile are counts.
_UNITS = {"_gb_per_s": "GB/s", "_tflops": "Tflop/s", "_ns": "ns",
          "_ns_per_gib": "ns per GiB", "_bytes": "bytes"}
_OF_EFFICIENCY = {"hbm_gb_per_s": "memory_efficiency"}


def run(said):
    out = os.path.join(os.environ["KIT_WORK"], "profile.json")
    command = [sys.executable, "-m", "tests.gpu_kit.card_profile", "--device",
               said.device, "--out", out]
    done = subprocess.run(
        command + ["--quick"] * (said.quick or said.simulated),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False, stdin=subprocess.DEVNULL)
    said.promise("the profile comes to its end", done.returncode == 0,
                 f"exit code {done.returncode}: {done.stdout[-1500:]}")
    with open(out, encoding="utf-8") as file:
        profile = json.load(file)
    said.table("result", [profile])
    for name, value in profile.items():
        if isinstance(value, (int, float)) and name in said.card:
            unit = next((unit for end, unit in _UNITS.items()
                         if name.endswith(end)), "")
            said.figure(name, value, unit, _of_card(said.card, name),
                        floor=64 << 20 if unit == "bytes" else 0)
    for name, value in profile["calls_ns"].items():
        said.figure(name, value / 1e3, "us", said.call_us(name), floor=1)


def _of_card(card, name):
    """What was reached is measured: a peak times what kernels reach of it."""
    part = _OF_EFFICIENCY.get(name)
    if part is None and name.endswith("_tflops"):
        part = "compute_efficiency"
    if name.endswith("_efficiency"):
        return 1
    return card[name] * (card[part] if part else 1)


if __name__ == "__main__":
    answer.main(run, ASKED)
