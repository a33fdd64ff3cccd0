# SPDX-License-Identifier: Apache-2.0
"""Commands in an environment that has no torch."""

import pytest

from bazel import programs

_WITHOUT_TORCH = """
import sys

class NoTorch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch)
from stratalloc.cli.command_line import main
sys.exit(main(sys.argv[1:]))
"""


def _script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", ["run", "estimate", "demo"])
def test_command_without_torch_says_what_to_install(tmp_path, command):
    program = _script(tmp_path, "print('it ran')")
    arguments = {"run": ("--simulate", "64MiB", program),
                 "estimate": ("--card", "a100", program), "demo": ()}[command]
    done = programs.run("-c", _WITHOUT_TORCH, command, *map(str, arguments),
                        fresh=True)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("stratalloc: torch cannot be imported (No module "
                           "named 'torch'); run `pip install "), line


def test_program_without_torch_fails_as_under_python(tmp_path):
    program = _script(tmp_path, "import torch")
    done = programs.run("-c", _WITHOUT_TORCH, "run", "--allocator", "native",
                        str(program), fresh=True)
    assert done.returncode == 1
    assert done.stderr.endswith("No module named 'torch'\n"), done.stderr
