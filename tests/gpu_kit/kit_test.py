# SPDX-License-Identifier: Apache-2.0
"""The kit as it is used: packed, unpacked into an empty folder, run there on
the simulated device, killed in the middle of a step, and gone on with."""

import glob
import importlib.metadata
import json
import os
import signal
import subprocess

import pytest

from tests.gpu_kit import polled
from tests.gpu_kit import unpacked

_SECONDS = 240  # until something is given up as hanging


@pytest.fixture(name="kit", scope="module")
def _kit(tmp_path_factory):
    return unpacked.Unpacked(tmp_path_factory.mktemp("unpacked"))


def _run(kit, *arguments, out="result.json"):
    return kit.run(out, "--device", "sim", *arguments, seconds=_SECONDS)


def _result(kit, out="result.json"):
    return kit.result(out)


def _processes_of(kit):
    """Command lines of processes that run out of the unpacked kit."""
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(folder + "/environ", "rb") as file:
                mine = os.fsencode(f"KIT_FOLDER={kit.folder}/") in file.read()
            if mine:
                with open(folder + "/cmdline", encoding="utf-8") as file:
                    found.append(file.read().replace("\0", " "))
        except OSError:
            pass  # it has ended meanwhile, or is not ours
    return found


def test_killed_in_a_step_it_goes_on_where_it_was(kit):
    steps = "--steps", "first,checksum,flash"
    done = _run(kit, "--steps", "checksum")
    assert done.returncode == 0, done.stdout + done.stderr
    before = _result(kit)["steps"]
    assert before["checksum"]["verdict"] == "ok"
    assert before["checksum"]["figures"]

    killed = subprocess.Popen(
        kit.command("result.json", "--device", "sim", *steps),
        cwd=kit.folder, env=kit.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True)
    try:
        # A process of the step's own: those must go with the kit, too.
        polled.until(lambda: any("--child" in line
                                 for line in _processes_of(kit)), _SECONDS)
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
    polled.until(lambda: not _processes_of(kit), _SECONDS)

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
    out = kit.path("short.json")
    steps = "--steps", "checksum,flash"
    done = _run(kit, *steps, "--minutes", "0.1", out=out)
    assert done.returncode == 3, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == "go on with: " + " ".join(kit.command(
        out, "--device", "sim", *steps, "--minutes", "0.1"))
    assert _result(kit, out)["steps"]["checksum"]["verdict"] == "begun"
    done = _run(kit, *steps, out=out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _result(kit, out)["steps"]["checksum"]["verdict"] == "ok"


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
    path = os.path.join(site, "stratalloc_cudasim", "simulated_child",
                        "sitecustomize.py")
    spec = importlib.util.spec_from_file_location("simulated_child", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


def _on_a_card(kit, tmp_path, out, *names):
    """Runs steps with --device cuda: the real clock, the machine's libraries."""
    (tmp_path / "sitecustomize.py").write_text(_CARD)
    done = kit.run(out, "--quick", "--steps", ",".join(names),
                   seconds=_SECONDS, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = _result(kit, out)
    assert found["device"] == "cuda"
    assert "H200" in found["machines"][0]["gpu"]
    return found


def test_step_on_a_gpu_is_run(kit, tmp_path):
    found = _on_a_card(kit, tmp_path, "step.json", "capture")
    assert found["steps"]["capture"]["verdict"] == "ok", found["differences"]


@pytest.mark.long
def test_what_is_run_on_a_gpu_is_run(kit, tmp_path):
    found = _on_a_card(kit, tmp_path, "gpu.json", "first", "costs", "capture",
                       "full")
    steps = found["steps"]
    assert [steps[name]["verdict"] for name in ("first", "capture", "full")] \
        == ["ok"] * 3, found["differences"]
    # By the real clock a call of the simulated device takes next to nothing.
    assert steps["costs"]["verdict"] == "differs"
    assert any("costs: create of one handle" in sentence
               for sentence in found["differences"])


def test_a_step_that_cannot_be_run_fails_and_the_others_go_on(kit):
    program, gone = (kit.path("gpu-kit", name)
                     for name in ("conformance", "gone"))
    os.rename(program, gone)
    try:
        done = _run(kit, "--steps", "conformance,flash", out="failed.json")
    finally:
        os.rename(gone, program)
    assert done.returncode == 1, done.stdout + done.stderr
    found = _result(kit, "failed.json")
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
    with open(kit.path("other.json"), "w", encoding="utf-8") as file:
        file.write('{"device": "cuda", "steps": {}}')
    done = _run(kit, out="other.json")
    assert done.returncode == 2 and "of --device cuda" in done.stderr


def test_torch_without_a_packed_bridge_is_refused(kit):
    path = kit.path("gpu-kit", "kit.json")
    with open(path, encoding="utf-8") as file:
        packed = file.read()
    values = {**json.loads(packed), "minors": ["2.9", "2.10"]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file)
    try:
        done = _run(kit, "--list")
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(packed)
    assert done.returncode == 1
    version = importlib.metadata.version("torch")
    assert done.stderr == (
        f"run.sh: torch {version} here, the kit is for 2.9 or 2.10\n")


def test_the_list_says_what_there_is(kit):
    done = _run(kit, "--list")
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:4] == ["first", "costs", "checksum", "evict"]
