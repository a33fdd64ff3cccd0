# SPDX-License-Identifier: Apache-2.0
"""The installer over planted lists and planted tools of the system."""

import errno
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

_HERE = pathlib.Path(__file__).resolve().parent

_DOWNLOADING = re.compile(r"» python, for \d+ s: Downloading torch")

_LISTS = {
    "apt/build.txt": "# compiles\ncompiler\nlibrary\n",
    "apt/tests.txt": "browser\n",
    "apt/programs.txt": "# program package path\nlinter server usr/bin/linter\n",
    "pip/installer.txt": "uv==1\n",
    "pip/build.txt": "torch==1\n",
    "pip/build-alone.txt": "weights==1\n",
    "pip/tests.txt": "pytest==1\n",
    "pip/tests-alone.txt": "accelerate==1\n",
    "pip/long.txt": "cluster==1\n",
    "pip/cuda.txt": "nvcc==1\n",
}

# Each tool writes its arguments into $LOG, then does the least it must.
_TOOLS = {
    "bin/dpkg-query": 'grep -qx "${!#}" installed && echo "ok installed"',
    "bin/apt-get": """
echo "apt-get $*" >>"$LOG"
if [[ $1 == install ]]; then
  if [[ -e refuse ]]; then echo "E: no such package"; exit 100; fi
  printf '%s\\n' "${@:2}" >>installed
elif [[ $1 == download ]]; then
  touch "${!#}_1.deb"
fi""",
    "bin/dpkg-deb": "mkdir -p usr/bin; touch usr/bin/linter",
    ".venv/bin/python": """
if [[ $* == *"config list" ]]; then
  echo ":env:.index-url='https://index.example'"
  echo "global.index-url='https://other.example'"
else
  echo "python $*" >>"$LOG"
fi""",
    ".venv/bin/uv": """
[[ ! -e pipe ]] || { echo "Downloading torch (500 MiB)"; read -r <pipe; }
echo "uv $* ${UV_DEFAULT_INDEX:-}" >>"$LOG" """,
    "cuda/bin/nvcc": "",
}

# An interpreter of the release $1; what it is asked by -c is asked of a real
# one that takes itself for that release.
_PYTHON = """
if [[ $1 == -c ]]; then
  exec {real} -c "import sys, sysconfig; sys.version_info = (3, {minor})
sysconfig.get_config_var = lambda _: {free}
$2" "${{@:3}}"
fi
echo "$(basename "$0") $*" >>"$LOG"
mkdir -p .venv/bin && mv planted .venv/bin/python"""

_PROGRAM = """
set -euo pipefail
VENV=$PWD/.venv PYTHON=$VENV/bin/python STAMPS=$VENV/.stamps BUILD=$PWD/build
say() { printf '» %s\\n' "$*" >&2; }
die() { say "$*"; exit 1; }
bazel_quiet() { echo "bazel $*" >>"$LOG"; }
source third_party/install.sh
begin_installing "$@"
finish_installing
wait
"""


class InstallTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in _LISTS.items():
            self._write("third_party/" + name, text)
        for name, text in _TOOLS.items():
            self._write(name, "#!/usr/bin/env bash\n" + text + "\n")
            (self.folder / name).chmod(0o755)
        self._write("third_party/install.sh",
                    (_HERE / "install.sh").read_text())
        self._write("installed", "compiler\nlibrary\n")

    def _write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _start(self, *sets, program=_PROGRAM):
        environment = dict(
            os.environ, LOG=str(self.folder / "log"), DEV_TICK="0.05",
            HOME=str(self.folder), CUDA_HOME=str(self.folder / "cuda"),
            PATH=f"{self.folder}/bin:{os.environ['PATH']}")
        environment.pop("UV_DEFAULT_INDEX", None)
        return subprocess.Popen(
            ["bash", "-c", program, "dev", *sets], cwd=self.folder,
            env=environment, text=True, stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE)

    def _install(self, *sets):
        """Exit code, what it said, and what it started."""
        log = self.folder / "log"
        log.write_text("")
        process = self._start(*sets)
        said = process.communicate()[1]
        return process.returncode, said, log.read_text().splitlines()

    def test_build_set_installs_nothing_that_only_tests_need(self):
        code, said, started = self._install("build")
        self.assertEqual(code, 0, said)
        self.assertEqual([line for line in started if "apt-get" in line], [])
        self.assertNotIn("tests.txt", " ".join(started))
        self.assertNotIn("compileall", " ".join(started))
        self.assertIn("torch==1 weights==1", said)

    def test_tests_set_installs_packages_programs_and_bytecode(self):
        code, said, started = self._install("build", "tests")
        self.assertEqual(code, 0, said)
        started = "\n".join(started)
        self.assertRegex(started, "apt-get install .* browser\n")
        self.assertIn("build.txt -r third_party/pip/tests.txt", started)
        self.assertIn("--no-deps -r third_party/pip/build-alone.txt "
                      "-r third_party/pip/tests-alone.txt", started)
        self.assertIn("compileall", started)
        self.assertEqual(started.count("bazel sync --configure"), 1)
        self.assertTrue((self.folder / ".venv/bin/linter").exists())

    def test_second_run_starts_nothing(self):
        self._install("build", "tests")
        self.assertEqual(self._install("build", "tests"), (0, "", []))

    def test_tests_set_after_build_set_adds_its_own(self):
        self._install("build")
        _, said, started = self._install("build", "tests")
        self.assertIn("installing into .venv: pytest==1 accelerate==1", said)
        self.assertRegex("\n".join(started), "apt-get install .* browser")

    def test_long_set_after_tests_set_adds_its_one_list(self):
        _, said, _ = self._install("build", "tests")
        self.assertNotIn("cluster", said)
        code, said, started = self._install("build", "tests", "long")
        self.assertEqual(code, 0, said)
        self.assertEqual(said.splitlines()[0],
                         "» installing into .venv: cluster==1")
        self.assertIn("tests.txt -r third_party/pip/long.txt",
                      "\n".join(started))
        self.assertEqual(self._install("long"), (0, "", []))

    def test_long_set_by_itself_installs_its_one_list(self):
        self._install("build")
        code, said, started = self._install("long")
        self.assertEqual(code, 0, said)
        self.assertEqual([line for line in started if line.startswith("uv ")], [
            f"uv pip install --python {self.folder}/.venv/bin/python "
            "-r third_party/pip/long.txt https://index.example"])

    def test_changed_list_is_installed_again(self):
        self._install("build")
        self._write("third_party/pip/build-alone.txt", "weights==2\n")
        _, said, started = self._install("build")
        self.assertIn("weights==2", said)
        self.assertIn("bazel sync --configure", started)

    def test_missing_compiler_is_installed_before_anything_else(self):
        self._write("installed", "library\n")
        _, _, started = self._install("build")
        self.assertRegex(started[1], "apt-get install .* compiler$")

    def test_missing_cuda_toolkit_is_installed(self):
        (self.folder / "cuda/bin/nvcc").unlink()
        _, said, started = self._install("build")
        started = "\n".join(started)
        self.assertRegex(started, r"uv .*--target \S+/\.venv/cuda -r "
                                  r"third_party/pip/cuda\.txt")
        self.assertIn("nvcc", said)
        self._write(".venv/cuda/nvidia/cu13/bin/nvcc", "").chmod(0o755)
        self.assertEqual(self._install("build"), (0, "", []))

    def test_failed_job_ends_the_program_with_the_end_of_its_log(self):
        (self.folder / "refuse").touch()
        code, said, started = self._install("build", "tests")
        self.assertEqual(code, 1)
        self.assertIn("E: no such package", said)
        self.assertIn("failed: apt", said)
        self.assertNotIn("bazel sync --configure", started)
        (self.folder / "refuse").unlink()
        self.assertEqual(self._install("build", "tests")[0], 0)

    def test_index_of_pip_is_the_index_of_uv(self):
        _, _, started = self._install("build")
        uv = [line for line in started if line.startswith("uv ")]
        self.assertTrue(uv)
        for line in uv:
            self.assertTrue(line.endswith(" https://index.example"), line)

    def _plant_pythons(self, **minors):
        """Interpreters by name, without .venv; no others are found. "14t" is
        a free-threaded one."""
        (self.folder / ".venv/bin/python").rename(self.folder / "planted")
        for name in ("python3", *(f"python3.{minor}" for minor in range(9, 16))):
            minor = str(minors.get(name.replace(".", "_"), ""))
            text = "exit 127" if not minor else _PYTHON.format(
                real=sys.executable, minor=minor.rstrip("t"),
                free=int(minor.endswith("t")))
            self._write("bin/" + name, f"#!/usr/bin/env bash\n{text}\n").chmod(
                0o755)

    def test_venv_is_of_the_first_python_that_torch_has_wheels_for(self):
        for minors, name in (
                ({"python3": 11, "python3_14": 14}, "python3"),
                ({"python3": 10, "python3_12": 12, "python3_11": 11},
                 "python3.12"),
                ({"python3": 15, "python3_15": 15, "python3_13": 13},
                 "python3.13"),
                ({"python3": "14t", "python3_14": "14t", "python3_12": 12},
                 "python3.12"),
                ({"python3_11": 11}, "python3.11")):
            with self.subTest(name):
                self._plant_pythons(**minors)
                code, said, started = self._install("build")
                self.assertEqual(code, 0, said)
                self.assertEqual(started[0],
                                 f"{name} -m venv {self.folder}/.venv")

    def test_no_python_with_wheels_ends_the_program_with_what_to_install(self):
        self._plant_pythons(python3=10, python3_9=9, python3_10=10,
                            python3_14="14t", python3_15=15)
        code, said, started = self._install("build")
        self.assertEqual(code, 1)
        self.assertRegex(said, r"\A» torch needs Python 3\.11 to 3\.14 with a "
                               r"global lock: install .* python3\.11-venv.*\n\Z")
        self.assertEqual(started, [])

    def test_venv_of_a_python_without_wheels_ends_the_program(self):
        for name in "python3.10", "python3.14t", "python3.15":
            with self.subTest(name):
                folder = self.folder / ".venv/lib" / name
                folder.mkdir(parents=True)
                code, said, started = self._install("build")
                self.assertEqual((code, started), (1, []))
                self.assertRegex(
                    said, rf"\A» \.venv is of {name}, and .* Python 3\.11 to "
                          r"3\.14 .*: rm -rf \.venv, and it is made again\n\Z")
                folder.rmdir()

    def test_venv_of_a_python_with_wheels_is_kept(self):
        for name in "python3.10", "python3.12":
            (self.folder / ".venv/lib" / name).mkdir(parents=True)
        self.assertEqual(self._install("build")[0], 0)

    def test_interrupted_installation_ends_its_jobs(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                pipe = self.folder / "pipe"
                pipe.unlink(missing_ok=True)
                os.mkfifo(pipe)
                process = self._start("build")
                with process.stderr:
                    for line in process.stderr:
                        if _DOWNLOADING.search(line):
                            break
                    process.send_signal(number)
                    # The pipe of stderr ends with the last job that has it.
                    process.stderr.read()
                self.assertEqual(process.wait(), code)
                with self.assertRaises(OSError) as no_reader:
                    while True:
                        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                self.assertEqual(no_reader.exception.errno, errno.ENXIO)

    def test_running_job_is_reported_and_an_ended_one_is_not(self):
        os.mkfifo(self.folder / "pipe")
        process = self._start("build", "tests")
        self.addCleanup(process.wait)
        self.addCleanup(self._release)
        with process.stderr:
            lines = []
            for line in process.stderr:
                if re.match(r"» \w+, for \d+ s: ", line):
                    lines.append(line)
                # Two of the same job: the other one has ended.
                if len(lines) > 99 or [
                        _DOWNLOADING.search(line) is not None
                        for line in lines[-2:]] == [True, True]:
                    break
            self.assertLess(len(lines), 99)
            self._release()
            process.stderr.read()
        self.assertEqual(process.wait(), 0)

    def test_job_that_ended_before_its_wait_prints_nothing(self):
        process = self._start(program=_PROGRAM.replace(
            'begin_installing "$@"', """
mkdir -p "$BUILD"
start quick true
while read -r _ _ state _ <"/proc/${jobs[quick]}/stat" && [[ $state != Z ]]
do :; done 2>/dev/null
wait_for_jobs
exit""", 1))
        self.assertEqual(process.communicate()[1], "")
        self.assertEqual(process.returncode, 0)

    def _release(self):
        """Lets the planted uv go on; it runs twice, and waits once."""
        pipe = self.folder / "pipe"
        if pipe.exists():
            pipe.rename(self.folder / "ended")
            (self.folder / "ended").open("w").close()


class ListsTest(unittest.TestCase):
    def test_no_package_is_in_two_lists(self):
        seen = {}
        for path in sorted(_HERE.glob("*/*.txt")):
            for line in path.read_text().splitlines():
                if not line.startswith("#"):
                    name = (path.parent.name, re.split(r"[=\s]", line)[0])
                    self.assertNotIn(name, seen, f"{path} and {seen.get(name)}")
                    seen[name] = path
        self.assertGreater(len(seen), 40)


if __name__ == "__main__":
    unittest.main()
