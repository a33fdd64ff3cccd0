# SPDX-License-Identifier: Apache-2.0
"""The kit as it is used: packed, unpacked into an empty folder, run there on
the simulated device, killed in the middle of a step, and gone on with."""

import glob
import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from tests.gpu import pack

_SECONDS = 240  # until something is given up as hanging


@pytest.fixture(name="kit", scope="module")
def _kit(tmp_path_factory):
    """The folder in which a tar of the kit was unpacked."""
    folder = tmp_path_factory.mktemp("packed")
    (wheel,) = glob.glob("python_shim/wheel/stratalloc-*.whl")
    out = folder / "gpu-kit.tar"
    pack.pack(pack.members(
        wheel, "test", "tests/conformance/conformance",
        "tests/gpu/libstratalloc_parts.so"), str(out))
    empty = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(out) as archive:
        archive.extractall(empty, filter="data")
    return empty


def _environment():
    """Nothing of the checkout: no path to it, no settings."""
    values = {key: value for key, value in os.environ.items()
              if not key.startswith(("STRATALLOC", "CUDASIM"))}
    del values["PYTHONPATH"]
    return {**values, "PYTHON": sys.executable}


def _command(kit, *arguments):
    return [str(kit / "gpu-kit" / "run.sh"), "result.json", "--device", "sim",
            *arguments]


def _run(kit, *arguments):
    return subprocess.run(
        _command(kit, *arguments), cwd=kit, env=_environment(), text=True,
        capture_output=True, check=False, timeout=_SECONDS)


def _result(kit):
    with open(kit / "result.json", encoding="utf-8") as file:
        return json.load(file)


def _processes_of(kit):
    """Command lines of processes that run out of the unpacked kit."""
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(folder + "/environ", "rb") as file:
                mine = os.fsencode(f"KIT_FOLDER={kit}/") in file.read()
            if mine:
                with open(folder + "/cmdline", encoding="utf-8") as file:
                    found.append(file.read().replace("\0", " "))
        except OSError:
            pass  # it has ended meanwhile, or is not ours
    return found


def _until(holds):
    """Polls: what it waits for is another process's progress."""
    deadline = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(.01)


def test_killed_in_a_step_it_goes_on_where_it_was(kit):
    steps = "--steps", "first,checksum,flash"
    done = _run(kit, "--steps", "checksum")
    assert done.returncode == 0, done.stdout + done.stderr
    before = _result(kit)["steps"]
    assert before["checksum"]["verdict"] == "ok"
    assert before["checksum"]["figures"]

    killed = subprocess.Popen(
        _command(kit, *steps), cwd=kit, env=_environment(),
        stdout=subprocess.PIPE, text=True)
    try:
        # A process of the step's own: those must go with the kit, too.
        _until(lambda: any("--child" in line for line in _processes_of(kit)))
        assert killed.poll() is None
        killed.send_signal(signal.SIGKILL)
        said = killed.stdout.read()
    finally:
        killed.kill()
        killed.wait()
    assert said.splitlines()[-1].split() == ["first", "..."]
    found = _result(kit)["steps"]
    assert found["first"]["verdict"] == "begun"
    assert found["checksum"] == before["checksum"] and len(found) == 2
    _until(lambda: not _processes_of(kit))

    done = _run(kit, *steps)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split()[0] for line in done.stdout.splitlines()]
    assert lines.count("first") == 2  # that it begins, and its verdict
    assert "checksum" not in lines
    assert "1 not here" in done.stdout
    found = _result(kit)["steps"]
    assert found["checksum"] == before["checksum"]
    assert found["first"]["verdict"] == "ok"
    assert found["flash"]["verdict"] == "not here"
    assert "not on the simulated device" in found["flash"]["sentences"][0]

    done = _run(kit, *steps)
    assert done.returncode == 0
    assert "3 of 3 steps are in" in done.stdout
    assert _result(kit)["steps"] == found

    done = _run(kit, "--steps", "flash", "--again", "checksum")
    assert done.returncode == 0, done.stdout + done.stderr
    again = _result(kit)["steps"]
    assert again["first"] == found["first"] and again["flash"] == found["flash"]
    assert [line.split()[0] for line in done.stdout.splitlines()].count(
        "checksum") == 2


def test_what_does_not_fit_is_left_and_the_command_is_said(kit):
    out = kit / "short.json"
    command = [str(kit / "gpu-kit" / "run.sh"), str(out), "--device", "sim",
               "--steps", "checksum,flash", "--minutes", "0.1"]
    done = subprocess.run(command, cwd=kit, env=_environment(), text=True,
                          capture_output=True, check=False, timeout=_SECONDS)
    assert done.returncode == 3, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == ("go on with: " + " ".join(command))
    with open(out, encoding="utf-8") as file:
        assert json.load(file)["steps"]["checksum"]["verdict"] == "begun"
    done = subprocess.run(command[:-2], cwd=kit, env=_environment(), text=True,
                          capture_output=True, check=False, timeout=_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(out, encoding="utf-8") as file:
        assert json.load(file)["steps"]["checksum"]["verdict"] == "ok"


def test_conformance_holds_and_all_of_it_is_asked(kit):
    done = _run(kit, "--steps", "conformance")
    assert done.returncode == 0, done.stdout + done.stderr
    found = _result(kit)["steps"]["conformance"]
    assert found["figures"]["checks"]["value"] > 850
    assert "simulated" in found["tables"]["device"][0]["device"]


def test_the_matrix_has_every_cell(kit):
    done = _run(kit, "--steps", "costs")
    assert done.returncode == 0, done.stdout + done.stderr
    found = _result(kit)["steps"]["costs"]
    (rows,) = found["tables"].values()
    cells = {(row["MiB"], row["mappings"], row["way"]) for row in rows}
    assert {(size, count, way) for size in (2, 32, 128)
            for count in (1, 8, 64, 512)
            for way in ("idle", "under a kernel")} <= cells
    assert all(row[call + "_us"] > 0 for row in rows
               for call in ("map", "access", "unmap"))
    # The kind that the product's probe finds on this card.
    assert "exportable True, for RDMA True" in found["notes"][0]
    assert found["facts"]["unmap waits for a running kernel"] == {
        "value": False, "simulated": False}


# Gives each process of the kit a card that it finds as a program finds its own,
# although the kit clears what a simulated run leaves in the environment.
_CARD = """
import importlib.util, json, os
site = os.environ.get("KIT_SITE")
if site:
    os.environ["STRATALLOC_SIMULATED_CHILD"] = json.dumps({
        "memory": "card", "devices": 1, "mode": "eager", "seed": 0,
        "card": "h200", "profile": None, "numbers": None})
    path = os.path.join(site, "stratalloc", "simulated_child",
                        "sitecustomize.py")
    spec = importlib.util.spec_from_file_location("simulated_child", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


def test_what_is_run_on_a_gpu_is_run(kit, tmp_path):
    """With --device cuda: the real clock, the machine's own libraries."""
    (tmp_path / "sitecustomize.py").write_text(_CARD)
    done = subprocess.run(
        [str(kit / "gpu-kit" / "run.sh"), "gpu.json", "--quick", "--steps",
         "first,costs,capture,full"], cwd=kit, text=True,
        env={**_environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True, check=False, timeout=_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(kit / "gpu.json", encoding="utf-8") as file:
        found = json.load(file)
    assert found["device"] == "cuda"
    assert "H200" in found["machines"][0]["gpu"]
    steps = found["steps"]
    assert [steps[name]["verdict"] for name in ("first", "capture", "full")] \
        == ["ok"] * 3, found["differences"]
    # By the real clock a call of the simulated device takes next to nothing.
    assert steps["costs"]["verdict"] == "differs"
    assert any("costs: create of one handle" in sentence
               for sentence in found["differences"])


def test_a_step_that_cannot_be_run_fails_and_the_others_go_on(kit):
    program = kit / "gpu-kit" / "conformance"
    program.rename(kit / "gpu-kit" / "gone")
    try:
        done = subprocess.run(
            [str(kit / "gpu-kit" / "run.sh"), "failed.json", "--device", "sim",
             "--steps", "conformance,flash"], cwd=kit, env=_environment(),
            text=True, capture_output=True, check=False, timeout=_SECONDS)
    finally:
        (kit / "gpu-kit" / "gone").rename(program)
    assert done.returncode == 1, done.stdout + done.stderr
    with open(kit / "failed.json", encoding="utf-8") as file:
        found = json.load(file)
    assert found["steps"]["conformance"]["verdict"] == "failed"
    assert any("conformance" in sentence for sentence in found["differences"])
    assert found["steps"]["flash"]["verdict"] == "not here"


@pytest.mark.parametrize("arguments, words", [
    (("--steps", "nosuch"), "there is no step nosuch"),
    (("--again", "nosuch"), "there is no step nosuch"),
])
def test_bad_arguments_run_nothing(kit, arguments, words):
    done = _run(kit, *arguments)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_a_result_of_another_device_is_refused(kit):
    (kit / "other.json").write_text('{"device": "cuda", "steps": {}}')
    done = subprocess.run(
        [str(kit / "gpu-kit" / "run.sh"), "other.json", "--device", "sim"],
        cwd=kit, env=_environment(), text=True, capture_output=True,
        check=False, timeout=_SECONDS)
    assert done.returncode == 2 and "of --device cuda" in done.stderr


def test_the_list_says_what_there_is(kit):
    done = _run(kit, "--list")
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:4] == ["first", "costs", "checksum", "evict"]
