# SPDX-License-Identifier: Apache-2.0
"""The example of an out of memory: its README's commands, one after another,
print what it shows."""

import json
import os
import pathlib
import re
import shlex
import shutil

import pytest

from bazel import programs

_EXAMPLE = pathlib.Path("python_shim/examples/out_of_memory")
_README = (_EXAMPLE / "README.md").read_text()


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", _README, re.DOTALL)


@pytest.fixture(scope="module", name="told")
def _told(tmp_path_factory):
    """(folder, [(exit code, stdout, stderr)]), of each of `stratalloc`'s
    commands."""
    folder = tmp_path_factory.mktemp("story") / "project"
    shutil.copytree(_EXAMPLE, folder)
    (folder / "ooms").mkdir()
    commands = [line for line in "".join(_blocks("sh")).splitlines()
                if line.startswith("stratalloc ")]
    told = []
    for command in commands:
        arguments = []
        for word in shlex.split(command)[1:]:  # as a shell has it
            found = sorted(map(str, folder.glob(word))) if "*" in word else []
            arguments += found or [word]
        done = programs.run("-m", "stratalloc", *arguments, cwd=folder,
                            env={**os.environ, "COLUMNS": "200"})
        told.append((done.returncode, done.stdout, done.stderr))
    return folder, told


def test_it_runs_out_of_memory_and_says_why(told):
    folder, ((code, _, errors), *_) = told
    bundle, = (folder / "ooms").iterdir()
    assert code == 1
    assert f"stratalloc wrote {bundle}." in errors
    assert "torch.OutOfMemoryError: CUDA out of memory. " in errors
    found = json.loads((bundle / "report.json").read_text())
    shown, = re.findall(r"Activations hold .*? Largest: Classifier\S* ", _README)
    assert shown in errors
    assert "(activation)" in found["verdict"]["sentence"]
    assert sum(found["arithmetic"].values()) == 96 << 20
    assert (bundle / "report.html").exists()


def test_the_report_names_what_would_have_served_it(told):
    _, (_, (code, page, _), *_) = told
    assert code == 0
    first, = re.findall(r"^1\. .*$", page, re.MULTILINE)
    assert re.match(r"1\. Free .* of Classifier\.blocks\.\d \(activation\)",
                    first), first
    shown, = re.findall(r"^1\. .*$", _README, re.MULTILINE)
    assert first.partition("it fits. ")[2] == shown.partition("it fits. ")[2]


def test_what_was_recorded_says_that_every_step_leaves_some(told):
    _, (_, _, (code, text, _), _) = told
    assert code == 0
    for line in re.findall(r"^Classifier\.blocks\.\d \(activation\): .* a step",
                           _README, re.MULTILINE):
        assert line in text, text


def test_the_folder_is_enough_for_a_report(told):
    folder, _ = told
    bundle, = (folder / "ooms").iterdir()
    done = programs.run("-m", "stratalloc", "report", bundle, "-o",
                        folder / "page.html")
    assert done.returncode == 0, done.stderr
    assert "run.strata: out of memory: 1 request was refused" in done.stdout
    assert "memory kept growing" in (folder / "page.html").read_text()


def test_mended_it_passes_in_the_same_room(told):
    folder, (*_, (code, out, errors)) = told
    assert code == 0, errors
    assert re.match(r"30 steps, last loss \d", out)
    assert "fits with room: at most " in errors
    assert len(list((folder / "ooms").iterdir())) == 1
