# SPDX-License-Identifier: Apache-2.0
"""Interpreters that the backend looks at, under pip, uv and `build`.

The stand-in of uv is a copy of bash, so that a process has its file: as `uv
python find` it runs the script `python` of its folder, which has what uv says.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

_HERE = pathlib.Path(__file__).resolve().parent
_BACKEND = f"""
import sys, tempfile
sys.path.insert(0, {str(_HERE)!r})
import build_environment
if len(sys.argv) > 1:
    sys.prefix, tempfile.tempdir = sys.argv[1:]
print(*build_environment.pythons(), sep="\\n")
"""
# With a second command bash does not become the backend.
_FRONTEND = '"$PYTHON" backend.py; exit'


class PythonsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        (self.folder / "backend.py").write_text(_BACKEND)
        (self.folder / "python").write_text(
            'echo "$* $VIRTUAL_ENV" >log; echo "${FOUND:?}"; echo more')
        for name in "one", "two":
            python = self.folder / name / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        self.uv = self.folder / "uv"
        shutil.copy(shutil.which("bash"), self.uv)

    def _python(self, name):
        return str(self.folder / name / "bin" / "python")

    def _run(self, *command, **variables):
        environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable,
                       "FOUND": "/found/python", **variables}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, check=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        return done.stdout.split()

    def _under_uv(self, *arguments, **variables):
        """It sets these two for what it runs."""
        frontend = (f"UV={self.uv} VIRTUAL_ENV={self.folder / 'two'} " +
                    _FRONTEND)
        return self._run(str(self.uv), "-c", frontend, "pip", "install",
                         *arguments, ".", **variables)

    def test_pip_has_its_own_interpreter_first(self):
        self.assertEqual(
            self._run("bash", "-c", _FRONTEND, VIRTUAL_ENV=str(
                self.folder / "one")),
            [sys.executable, self._python("one")])

    def test_environment_of_the_caller_is_looked_at_after_the_own(self):
        frontend = f"VIRTUAL_ENV={self.folder / 'two'} {_FRONTEND}"
        self.assertEqual(
            self._run("bash", "-c", frontend,
                      VIRTUAL_ENV=str(self.folder / "one")),
            [sys.executable, self._python("two"), self._python("one")])

    def test_environment_without_an_interpreter_is_passed_over(self):
        self.assertEqual(
            self._run("bash", "-c", _FRONTEND, VIRTUAL_ENV="/nowhere"),
            [sys.executable])

    def test_build_environment_of_build_is_passed_over(self):
        frontend = f'"$PYTHON" backend.py {self.folder}/build-env-x7 ' \
                   f"{self.folder}; exit"
        self.assertEqual(self._run("bash", "-c", frontend), [])
        self.assertEqual(
            self._run("bash", "-c", frontend,
                      VIRTUAL_ENV=str(self.folder / "one")),
            [self._python("one")])

    def test_uv_is_asked_what_it_installs_into(self):
        """With its variables and from its folder, not those of the backend."""
        self.assertEqual(self._under_uv(VIRTUAL_ENV="/of/user"),
                         ["/found/python"])
        self.assertEqual((self.folder / "log").read_text(), "find /of/user\n")

    def test_options_of_uv_that_choose_the_interpreter_are_passed_on(self):
        for arguments, words in (
                (("--python", "3.12"), "3.12"), (("-p", "3.12"), "3.12"),
                (("--python=3.12",), "3.12"), (("-p3.12",), "3.12"),
                (("-p=3.12", "--pre"), "3.12"), (("--system",), "--system")):
            with self.subTest(arguments):
                self._under_uv(*arguments)
                self.assertEqual((self.folder / "log").read_text(),
                                 f"find {words} \n")

    def test_uv_that_finds_nothing_leaves_no_interpreter(self):
        self.assertEqual(self._under_uv(FOUND=""), [])

    def test_pip_that_uv_started_is_not_taken_for_uv(self):
        """As by `uv run pip install .`."""
        self.assertEqual(
            self._run("bash", "-c", _FRONTEND, UV=str(self.uv)),
            [sys.executable])


if __name__ == "__main__":
    unittest.main()
