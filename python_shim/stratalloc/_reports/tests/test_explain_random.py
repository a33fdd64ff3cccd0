# SPDX-License-Identifier: Apache-2.0
"""explain() against what comes of it: random programs, each in a process."""

import json
import pathlib

import pytest

from bazel import programs

PROGRAM = pathlib.Path(__file__).with_name("explained_program.py")
# Options, and what has to be among what was said.
RUNS = {
    "off": (["--tiering", "off", "--seeds", "14", "--first", "40"],
            ("limit", "frees", "limit helps", "nothing", "now")),
    "limit": (["--tiering", "off", "--seeds", "4", "--gpu-limit", "101MiB"],
              ("limit", "nothing", "now")),
    "host": (["--host-budget", "1GiB", "--seeds", "3"],
             ("eviction", "limit helps", "nothing", "now")),
    "short": (["--host-budget", "64MiB", "--seeds", "4"],
              ("eviction", "limit helps", "nothing", "now")),
    "disk": (["--host-budget", "32MiB", "--disk-budget", "64MiB", "--seeds",
              "3"], ("eviction", "nothing", "now")),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_said_comes_true(name):
    options, among = RUNS[name]
    done = programs.run(PROGRAM, *options)
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout.splitlines()[-1])
    faults = tally.pop("faults")
    assert tally["certain"] > tally["asked"] / 8
    assert all(tally.get(each, 0) > 0 for each in among), tally
    # Where an eviction has to go through two tiers, they have the last word.
    doubtful = [fault for fault in faults
                if name == "disk" and fault[2] == "verdict"
                and not fault[5]["certain"]]
    assert faults == doubtful, (tally, *faults)
    assert len(doubtful) <= 1, (tally, *doubtful)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
