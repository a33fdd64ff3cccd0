# SPDX-License-Identifier: Apache-2.0
"""`./dev minors` over planted minors, with stand-ins for Bazel and its tools."""

import os
import pathlib
import subprocess
import tempfile
import unittest

_HERE = pathlib.Path(__file__).resolve().parent
_INSTALL = _HERE.parents[2] / "third_party" / "install.sh"

_FILES = {
    ".gitignore": ".venv/\nbuild/\nlog\n",
    "source.py": "",
    "deleted.py": "",
    "third_party/torch/minors.txt": "# minors\n2.9.0\n2.10.1\n2.11.0\n",
    "third_party/pip/build.txt": "torch==2.11.0\ntorchvision==1\nnumpy==1\n",
    "third_party/pip/build-alone.txt": "weights==1\n",
    "third_party/pip/tests.txt": "pytest==1\n",
    "third_party/pip/tests-alone.txt": "accelerate==1\n",
    # In place of the runner of Bazel: a report.
    "tests/repository/report/run.py": """
import pathlib, sys
path = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
path.write_text("{}")
(python,) = (word for word in sys.argv if word.startswith("--repo_env"))
with open("log", "a") as log:
    print("tests", path.stem, python.rpartition("=")[2], file=log)
""",
    "tests/system/minors/table.py": """
import os, sys
with open("log", "a") as log:
    print("table", *map(os.path.basename, sys.argv[2:]), file=log)
if os.path.exists("build/edit"):
    os.replace("build/edit", "source.py")
""",
    # Rewrites a file of the tree, as the data of a minor.
    "tests/simulator/cudasim/coverage/generate.py": """
import sys
with open("data", "a") as data:
    print(sys.argv[1].partition("=")[0], file=data)
""",
}
# An interpreter, and what `-m venv` makes of it. The version of a torch is that
# in the file `torch` above it.
_PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"version('torch')"*) grep -q "$(cat "${0%/bin/python}/torch")" <<<"$2" ;;
  *purelib*) echo site ;;
esac
"""
_UV = """#!/usr/bin/env bash
echo "uv $*" >>log
[[ ! -e refuse || $* != *$(cat refuse 2>/dev/null)* ]]
"""
_PROGRAM = """
set -euo pipefail
VENV=$PWD/.venv PYTHON=$VENV/bin/python STAMPS=$VENV/.stamps BUILD=$PWD/build
say() { printf '» %s\\n' "$*" >&2; }
die() { say "$*"; exit 1; }
ensure() { :; }
own_release() { echo 2.11.0; }
bazel_quiet() { echo more >>data; echo "bazel $*" >>log; }
mkdir -p build
source third_party/install.sh
source tests/system/minors/minors.sh
verb_minors "$@"
"""


class MinorsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        for name, text in _FILES.items():
            self._write(name, text)
        for name, text in ((".venv/bin/python", _PYTHON), (".venv/bin/uv", _UV)):
            self._write(name, text).chmod(0o755)
        self._write("third_party/install.sh", _INSTALL.read_text())
        self._write("tests/system/minors/minors.sh",
                    (_HERE / "minors.sh").read_text())
        self.results = self.folder / "build" / "minors"
        self._git("init", "-q")
        self._git("add", "-A")
        self._git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm1")

    def _git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.folder, check=True)

    def _write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _run(self, *arguments, code=0):
        """The lines of the log: what was installed and tested."""
        log = self._write("log", "")
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1",
                           HOME=str(self.folder))
        # Bazel's, where the packages of the planted tools are real ones.
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            ["bash", "-c", _PROGRAM, "dev", *arguments], cwd=self.folder,
            env=environment, text=True, stdin=subprocess.DEVNULL, check=False,
            capture_output=True)
        self.said = done.stderr
        self.assertEqual(done.returncode, code, done.stderr)
        return log.read_text().splitlines()

    def _installed(self, *arguments):
        """The releases of torch that a run installed."""
        return [word for line in self._run(*arguments)
                for word in line.split() if word.startswith("torch==")]

    def _prepared(self, version, release="2.9.0"):
        """A venv that older clones made: its stamp is empty."""
        venv = self.results / "venv-2.9"
        self._write(venv / "bin/python", _PYTHON).chmod(0o755)
        self._write(venv / "torch", release)
        return self._write(venv / "ready", version)

    def test_minors_each_get_the_lists_with_their_own_torch(self):
        lines = self._run("--keep")
        venv = self.results / "venv-2.10/bin/python"
        self.assertRegex(
            "\n".join(lines),
            f"{venv} torch==2.10.1 torchvision numpy==1 pytest==1\n")
        self.assertIn(f"tests 2.10 {venv}", lines)
        self.assertIn(f"tests 2.11 {self.folder}/.venv/bin/python", lines)
        self.assertIn("table 2.9.json 2.10.json 2.11.json", lines)

    def test_kept_venv_is_used_again_until_a_list_changes(self):
        self.assertEqual(self._installed("--keep", "2.9"), ["torch==2.9.0"])
        self.assertEqual(self._installed("--keep", "2.9"), [])
        left = self._write("build/minors/venv-2.9/left", "")
        for name, text in (("tests-alone.txt", "accelerate==2\n"),
                           ("tests.txt", "pytest==2\n")):
            self._write("third_party/pip/" + name, text)
            self.assertEqual(self._installed("--keep", "2.9"), ["torch==2.9.0"])
        self.assertFalse(left.exists())
        self._write("third_party/torch/minors.txt", "2.9.1\n2.11.0\n")
        self.assertEqual(self._installed("--keep", "2.9"), ["torch==2.9.1"])

    def test_venv_of_an_older_clone_is_adopted_once_with_the_same_torch(self):
        ready = self._prepared("")
        self.assertEqual(self._installed("--keep", "2.9"), [])
        self.assertNotEqual(ready.read_text(), "")
        self._write("third_party/pip/tests.txt", "pytest==2\n")
        self.assertEqual(self._installed("--keep", "2.9"), ["torch==2.9.0"])

    def test_venv_of_an_older_clone_with_another_torch_is_made_again(self):
        self._prepared("", "2.9.7")
        self.assertEqual(self._installed("--keep", "2.9"), ["torch==2.9.0"])

    def test_venv_goes_after_its_tests(self):
        self._run("2.9")
        self.assertFalse((self.results / "venv-2.9").exists())

    def test_failed_installation_leaves_the_other_minors(self):
        self._write("refuse", "torch==2.9.0")
        lines = self._run("--keep", code=1)
        self.assertNotIn("tests 2.9 ", "\n".join(lines))
        self.assertIn("table 2.10.json 2.11.json", lines)
        self.assertIn("torch 2.9 is not installed", self.said)
        (self.folder / "refuse").unlink()
        self.assertEqual(self._installed("--keep", "2.9"), ["torch==2.9.0"])

    def test_no_results_at_all_is_one_line(self):
        self._write("refuse", "torch==2.9.0")
        self._run("2.9", code=1)
        self.assertEqual(self.said.splitlines()[-1], "» no minor has results")

    def test_unknown_minor_is_refused_before_any_other_runs(self):
        self.assertEqual(self._run("2.9", "2.8", code=1), [])
        self.assertEqual(self.said, "» no wheel known for 2.8\n")

    def test_results_of_this_tree_are_kept_though_the_run_rewrites_it(self):
        self._run("2.9")
        self.assertIn("table 2.9.json 2.11.json", self._run("2.11"))

    def test_results_of_another_tree_are_dropped(self):
        def edit():
            self._write("source.py", "edited")

        def add():
            self._write("untracked.py", "")

        def delete():
            (self.folder / "deleted.py").unlink()

        for change in edit, add, delete:
            with self.subTest(change.__name__):
                self._run("2.9")
                change()
                self.assertIn("table 2.11.json", self._run("2.11"))

    def test_results_are_dropped_after_a_change_during_the_run(self):
        self._write("build/edit", "by the user")
        self._run("2.9")
        self.assertIn("table 2.11.json", self._run("2.11"))

    def test_results_are_dropped_where_there_is_no_git(self):
        (self.folder / ".git").rename(self.folder / "gone")
        self._run("2.9")
        self.assertIn("table 2.11.json", self._run("2.11"))


if __name__ == "__main__":
    unittest.main()
