# SPDX-License-Identifier: Apache-2.0
"""Usage errors of the command line."""

import os

import pytest

from bazel import programs


def stratalloc(*arguments):
    """The ended command, on a machine without a GPU."""
    return programs.run("-m", "stratalloc", *arguments, env={
        **os.environ, "CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize("arguments", [
    ("nonsense",), ("run",), ("demo", "--device", "tpu"),
    ("run", "/no/such/script.py"), ("demo", "--gpu-memory", "lots"),
    ("run", "--simulate", "64MB", "-m", "this"),
    ("run", "--devices", "4", "-m", "this"),
    ("run", "--mode", "async", "-m", "this"),
    ("run", "--seed", "7", "-m", "this"),
    ("run", "-m", "no_such_module"), ("run", "-m", "no_such_package.module"),
    ("doctor", "--json", "/no/such/folder/x.json"),
    ("run", "--simulate", "1KiB", "-m", "this"),
    ("run", "--simulate", "8MiB", "--card", "h2000", "-m", "this"),
    ("run", "--simulate", "8MiB", "--profile", "no/file", "-m", "this"),
    ("run", "--simulate", "card", "-m", "this"),
    ("run", "--card", "h200", "-m", "this"),
    ("run", "--report", "--depth", "deep", "-m", "this"),
    ("run", "--report", "--depth", "-1", "-m", "this"),
    ("run", "--depth", "2", "-m", "this"), ("run", "--all", "-m", "this"),
    *(("run", "--metrics", place, "-m", "this") for place in (
        "here", "65536", "", ":9400", "::1:9400", "[]:9400", "[::1]", "9400:",
        "[127.0.0.1]:9400", "http://127.0.0.1:9400", "127.0.0.1", "a b:9400")),
    ("run", "--report", "--allocator", "native", "-m", "this"),
    ("run", "--live", "--allocator", "native", "-m", "this"),
    ("demo", "--card", "h2000"), ("oom",), ("oom", "/no/such/folder"),
    ("demo", "--device", "cuda", "--card", "h200"),
    ("run", "--numbers", "off", "-m", "this"),
    ("run", "--simulate", "64MiB", "--numbers", "some", "-m", "this"),
    ("run", "--conf", "host_budjet:1MiB", "-m", "this"),
])
def test_usage_errors(arguments):
    done = stratalloc(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "stratalloc: stratalloc" not in done.stderr


@pytest.mark.parametrize("arguments", [
    ("run", "--simulate", "64M", "-m", "this"),
    ("run", "--simulate", "64MB", "-m", "this"),
    ("run", "--conf", "host_budget:64m", "-m", "this"),
    ("demo", "--gpu-memory", "64M"), ("demo", "--host-budget", "64mb"),
])
def test_sizes_in_other_units_name_the_right_one(arguments):
    done = stratalloc(*arguments)
    assert done.returncode == 2 and "write 64MiB" in done.stderr, done.stderr


def test_unknown_argument_is_refused_with_the_usage_of_its_command():
    for given in (("top", "999999"), ("doctor", "now"),
                  ("demo", "--fast", "--json", "x")):
        done = stratalloc(*given)
        assert done.returncode == 2
        assert done.stderr.startswith(f"usage: stratalloc {given[0]} ")
        assert f"unrecognized arguments: {given[1]}" in done.stderr


@pytest.mark.parametrize("given, said", [
    ("repot", "there is no command 'repot'; did you mean 'report'?"),
    ("xyz", "there is no command 'xyz'; `stratalloc --help` lists them")])
def test_unknown_command_is_answered_with_the_nearest(given, said):
    done = stratalloc(given, "x")
    assert done.returncode == 2 and done.stderr.endswith(f"error: {said}\n")


def test_no_simulated_device_at_all_names_the_number():
    done = stratalloc("run", "--simulate", "64MiB", "--devices", "0", "-m",
                      "this")
    assert done.returncode == 2
    assert "0 simulated devices are too few" in done.stderr, done.stderr


def test_devices_without_a_simulated_one_name_both_ways():
    done = stratalloc("run", "--devices", "4", "--mode", "eager", "-m", "this")
    assert done.returncode == 2
    for word in ("--devices, --mode", "--simulate SIZE",
                 "CUDA_VISIBLE_DEVICES"):
        assert word in done.stderr, done.stderr
