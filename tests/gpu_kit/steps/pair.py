# SPDX-License-Identifier: Apache-2.0
"""What malloc and free, a scope and the guard cost: `stratalloc bench`."""

import json
import os
import subprocess
import sys

from tests.gpu_kit import answer

ASKED = "What do allocations, scopes and the guard cost against PyTorch's own?"


def run(said):
    out = os.path.join(os.environ["KIT_WORK"], "bench.json")
    rounds = 2 if said.simulated or said.quick else 9
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "bench", "--device", said.device,
         "--rounds", str(rounds), "--json", out],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace", check=False, stdin=subprocess.DEVNULL)
    said.promise("the benchmarks come to their end", done.returncode == 0,
                 f"exit code {done.returncode}: {done.stderr[-1500:]}")
    with open(out, encoding="utf-8") as file:
        found = json.load(file)
    said.note(f"machine: {found['machine']}")
    said.table("benchmarks", [
        {key: row.get(key) for key in (
            "group", "name", "value", "unit", "baseline_name", "baseline",
            "ratio", "ratio_low", "ratio_high", "difference", "goal", "pass",
            "ours_calls", "native_calls")}
        for row in found["benchmarks"]])
    if said.simulated:
        return  # processor time of a machine without a GPU says nothing here
    for row in found["benchmarks"]:
        if row.get("pass") is False:
            said.differs(f"{row.get('group')}: {row['name']}: "
                         f"{row['value']:.0f} {row['unit']}, ratio "
                         f"{row.get('ratio')}, the bar is {row['goal']}")


if __name__ == "__main__":
    answer.main(run, ASKED)
