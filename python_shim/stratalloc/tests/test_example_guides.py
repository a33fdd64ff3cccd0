# SPDX-License-Identifier: Apache-2.0
"""The examples of two guides: each README's command prints what it shows. The
sizes and names are compared, but for how much moved, which is the tiers' own."""

import os
import pathlib
import re
import shlex

import pytest

from bazel import programs

_EXAMPLES = pathlib.Path("python_shim/examples")
# What depends on when something was moved, and on how torch rounds a search.
_LOOSE = re.compile(r"[\d.]+ MiB moved out|\d+ rows, \d+ larger ones"
                    r"|by [\d.]+ MiB\.")


def _block(readme, language):
    found, = re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)
    return found.splitlines()


@pytest.mark.parametrize("name", ("memory_guide", "large_models"))
def test_the_command_of_the_readme_prints_what_it_shows(name):
    readme = (_EXAMPLES / name / "README.md").read_text()
    command = _block(readme, "sh")[-1]
    assert command.startswith("stratalloc ")
    done = programs.run("-m", "stratalloc", *shlex.split(command)[1:],
                        cwd=_EXAMPLES / name,
                        env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    got = [_LOOSE.sub("…", line) for line in done.stdout.splitlines()]
    want = [_LOOSE.sub("…", line) for line in _block(readme, "text")]
    assert got == want
    for line in done.stdout.splitlines():
        moved = re.search(r"([\d.]+) MiB moved out", line)
        if moved:
            assert float(moved.group(1)) > 0, line
