# SPDX-License-Identifier: Apache-2.0
"""The small suite from the command line:

    python tests/system/e2e/small/run.py --seeds 1-100 --allocator native

One process runs all the seeds. Exit code 1 if a number differed from the CPU's
or anything was reported.
"""

import argparse
import json
import os
import subprocess
import sys

_SUITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "suite.py")

# Ours gets a device that half of `larger_than_the_device` fits on.
MEMORY = {"native": "256MiB", "stratalloc": "24MiB"}


def command(allocator, seeds, *options):
    conf = (["--conf", "host_budget:256MiB"] if allocator == "stratalloc"
            else [])
    return ["run", "--simulate", MEMORY[allocator], "--mode", "async",
            "--allocator", allocator, *conf, _SUITE, "--seeds", seeds,
            *options]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="1-5", help="first-last")
    parser.add_argument("--allocator", choices=("native", "ours"),
                        default="native")
    parser.add_argument("--only", help="names with commas between them")
    arguments = parser.parse_args()
    allocator = ("native" if arguments.allocator == "native"
                 else "stratalloc")
    only = ["--only", arguments.only] if arguments.only else []
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc",
         *command(allocator, arguments.seeds, *only)],
        stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["failed"] else 0)


if __name__ == "__main__":
    main()
