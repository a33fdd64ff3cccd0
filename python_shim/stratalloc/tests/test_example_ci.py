# SPDX-License-Identifier: Apache-2.0
"""The example project: its workflow's command passes, its breach is as shown."""

import os
import pathlib
import re
import shlex
import shutil

import pytest

from bazel import programs
from python_shim.testing import parked

_EXAMPLE = pathlib.Path("python_shim/examples/ci")


@pytest.fixture(name="project")
def _project(tmp_path):
    copy = tmp_path / "project"
    shutil.copytree(_EXAMPLE, copy)
    return copy


def _commands(text):
    """The pytest commands of a page, whole."""
    joined = re.sub(r"\n\s+(?=--)", " ", text)
    return [shlex.split(line) for line in re.findall(
        r"^\s*(pytest --stratalloc-simulate.*)$", joined, re.MULTILINE)]


def _run(project, command):
    done = programs.run(
        *parked.command(*command, "-p", "no:cacheprovider",
                        *parked.OUR_PLUGIN_ALONE),
        cwd=project, env={**os.environ, "COLUMNS": "200"})
    return done.returncode, done.stdout + done.stderr


def test_the_workflow_passes(project):
    command, = _commands((project / "workflow.yml").read_text())
    assert [command] == _commands((project / "README.md").read_text())
    code, text = _run(project, command)
    assert code == 0 and "2 passed" in text, text
    budget = (project / "test_memory.budget.json").read_text()
    assert _run(project, [*command, "--stratalloc-update-budgets"])[0] == 0
    assert (project / "test_memory.budget.json").read_text() == budget


def test_a_breach_is_as_the_readme_shows(project):
    module = project / "test_memory.py"
    module.write_text(module.read_text().replace("WORDS = 8,", "WORDS = 9,"))
    command, = _commands((project / "workflow.yml").read_text())
    code, text = _run(project, command)
    shown, = re.findall(r"```text\n(.*?)```",
                        (project / "README.md").read_text(), re.DOTALL)
    assert code == 1 and shown in text, text
