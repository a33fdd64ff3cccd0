# SPDX-License-Identifier: Apache-2.0
"""The commands on files: answers, exit codes, and files that nobody should
open."""

import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile

import pytest

import made_recordings
from stratalloc import cli
from stratalloc.telemetry import commands

FORMATS = list(commands._WRITERS)  # pylint: disable=protected-access
CHECKED = {"snapshot-json": "snapshot", "otel": None, "tensorboard": None}


@pytest.fixture(name="file")
def _file(tmp_path):
    path = tmp_path / "r.strata"
    path.write_bytes(made_recordings.file_of(*made_recordings.two_blocks()))
    return str(path)


def run(capsys, *argv):
    """(exit code, stdout, stderr); no traceback, whatever was given."""
    code = cli.main([str(one) for one in argv])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


def answer(capsys, *argv):
    # Not "-": that is the process's own stdout from then on.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "answer")
        code, _, _ = run(capsys, *argv, "--json", path)
        with open(path, encoding="utf-8") as found:
            return code, json.load(found)


@pytest.mark.parametrize("command", ["summary", "tree", "peak", "leaks"])
def test_each_answers_for_people_and_for_machines(capfd, file, command):
    code, out, error = run(capfd, command, file)
    assert (code, error) == (0, "") and out
    code, found = answer(capfd, command, file)
    assert code == 0 and isinstance(found, dict)


def test_a_tree_adds_up(capfd, file):
    for at, total in (("start", 512), ("end", 1024)):
        code, found = answer(capfd, "tree", file, "--at", at)
        assert code == 0
        assert found["total"] == total == sum(
            row["bytes"] for row in found["rows"])


def test_a_diff_of_a_file_with_itself_is_nothing(capfd, file):
    code, found = answer(capfd, "diff", file, file)
    assert (code, found["total"], found["rows"]) == (0, 0, [])


def test_fit_says_no_with_1(capfd, file):
    assert run(capfd, "fit", file, "--capacity", "1GiB")[0] == 0
    code, found = answer(capfd, "fit", file, "--capacity", "1MiB")
    assert code == 1 and found["fits"] is False


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_converted_is_fine(capfd, tmp_path, file, form):
    made = tmp_path / "made"
    code, _, error = run(capfd, "convert", file, "--to", form, "-o", made)
    if form == "tensorboard" and not importlib.util.find_spec("tensorboard"):
        assert code == 3 and "stratalloc[telemetry]" in error
        return
    assert code == 0, error
    checked = CHECKED.get(form, form)
    if checked is not None:
        code, found = answer(capfd, "validate", made, "--format", checked)
        assert (code, found["findings"]) == (0, [])


def test_a_recording_that_does_not_add_up_is_a_finding(capfd, tmp_path):
    head, events = made_recordings.two_blocks()
    events["address"][3] += 512
    path = tmp_path / "wrong"
    path.write_bytes(made_recordings.file_of(head, events))
    code, found = answer(capfd, "validate", path)
    assert code == 1 and found["findings"]


@pytest.mark.parametrize("argv, code, says", [
    (("summary", "no.such.file"), 2, "there is no file no.such.file"),
    (("summary",), 2, "Missing"),
    (("summary", "--nope"), 2, "--nope"),
    (("convert", "FILE", "--to", "nope", "-o", "x"), 2, "speedscope"),
    (("convert", "FILE", "--to", "csv", "-o", "/no/such/x"), 1,
     "cannot be written: No such file"),
    (("convert", "FILE", "--to", "csv", "-o", "/dev/full"), 1,
     "No space left"),
    (("fit", "FILE", "--capacity", "lots"), 2, "not a size"),
    (("fit", "FILE", "--capacity", "1GiB", "--policy", "best"), 2, "one of"),
    (("tree", "FILE", "--device", "3"), 2, "the file has 0"),
    (("validate", "FILE", "--format", "nope"), 2, "one of"),
    (("summary", "FILE", "--json", "/no/such/x"), 2, "nothing can be written"),
    (("summary", "/"), 1, "Is a directory"),
])
def test_what_cannot_be_is_said(capfd, file, argv, code, says):
    found, out, error = run(capfd, *(file if one == "FILE" else one
                                     for one in argv))
    assert (found, out) == (code, ""), error
    assert says in error and error.count("\n") <= 2


def inputs():
    return int(os.environ.get("STRATALLOC_FUZZ_INPUTS", "600"))


def test_no_damaged_file_is_more_than_an_error(capfd, tmp_path):
    """Bytes turned, cut and doubled: an answer or a sentence, never more."""
    good = made_recordings.file_of(*made_recordings.two_blocks())
    chance = random.Random(11)
    path = tmp_path / "damaged"
    codes = set()
    for _ in range(inputs()):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < .3:
            del data[chance.randrange(len(data)):]
        elif chance.random() < .2:
            data = data + data
        path.write_bytes(data)
        code, _, error = run(capfd, chance.choice(("summary", "tree",
                                                   "validate")), path)
        assert code in (0, 1) and error.count("\n") <= 1
        codes.add(code)
    assert codes == {0, 1}


def test_without_its_packages_a_command_says_what_to_install(tmp_path, file):
    """numpy or typer missing is no traceback."""
    (tmp_path / "typer.py").write_text("raise ImportError('No module typer')")
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "summary", file], check=False,
        capture_output=True, text=True, env={
            **os.environ, "PYTHONPATH": os.pathsep.join(
                [str(tmp_path), *sys.path])})
    assert done.returncode == 3
    assert "stratalloc[telemetry]" in done.stderr
    assert "Traceback" not in done.stderr
