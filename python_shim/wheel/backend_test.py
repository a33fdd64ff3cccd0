# SPDX-License-Identifier: Apache-2.0
"""The build backend in a planted clone, with stand-ins for Bazel and torch."""

import contextlib
import importlib
import io
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

_HERE = pathlib.Path(__file__).resolve().parent

_FILES = {
    "third_party/torch/minors.txt": "# minors\n2.11.0\n2.15.0\n",
    "third_party/pip/cuda.txt": "# nvcc\ncuda-toolkit[nvcc]==13.0.2\n",
    "third_party/repositories.bzl": """
_SYSTEM_LIBRARIES = {
    "stdio": ("stdio.h", ["c"], True, "libc6-dev"),
    "tests": ("no/test.h", ["test"], False, "libtest-dev"),
}
""",
    "include/stdio.h": "",
    "cuda/include/cublas_v2.h": "",
    "cuda/include/cusolverDn.h": "",
    "site/nvidia/cu13/include/cusparse.h": "",
    # In place of the runner of Bazel: what it was given, and a wheel.
    "tests/repository/report/run.py": """
import os, sys
with open("log", "w") as log:
    print(*sys.argv[1:], sep="\\n", file=log)
    print(*sorted(os.environ), file=log)
os.makedirs("bin/python_shim/wheel", exist_ok=True)
with open("bin/python_shim/wheel/stratalloc-1-py3-none-linux.whl", "w"):
    pass
sys.exit(os.path.exists("broken"))
""",
}
_PROGRAMS = {
    "tools/bazel": '[ "$1 $2" = "info bazel-bin" ] && echo "$PWD/bin"',
    "tools/g++": "",
    "cuda/bin/nvcc": "",
    "old/bin/python": "echo SITE; echo 2.10.0+cu130",
    "new/bin/python": "echo SITE; echo 2.15.0+cu132",
    "bare/bin/python": "",
}


class BackendTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        for name, text in _FILES.items():
            self._write(name, text)
        for name, text in _PROGRAMS.items():
            text = text.replace("SITE", str(self.root / "site"))
            self._write(name, f"#!/bin/sh\n{text}\n").chmod(0o755)
        place = self.root / "python_shim" / "wheel"
        place.mkdir(parents=True)
        for name in ("backend.py", "build_needs.py"):
            shutil.copy(_HERE / name, place)
        self._patch(mock.patch.object(sys, "path", [str(place), *sys.path]))
        self._patch(mock.patch.dict(sys.modules))
        for name in ("backend", "build_needs"):
            sys.modules.pop(name, None)
        self.backend = importlib.import_module("backend")
        self.needs = importlib.import_module("build_needs")
        self._patch(mock.patch.object(
            self.needs, "_PREFIXES", (str(self.root),)))
        self._patch(mock.patch.dict(os.environ, {
            "PATH": f"{self.root / 'tools'}:/usr/bin:/bin",
            "CUDA_HOME": str(self.root / "cuda"), "PYTHONPATH": "/of/pip"}))
        self._found_in("new")

    def _patch(self, patch):
        self.addCleanup(patch.stop)
        return patch.start()

    def _write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _python(self, name):
        return str(self.root / name / "bin" / "python")

    def _found_in(self, *names):
        """Which interpreters are looked at without a setting."""
        self._patch(mock.patch.object(
            self.needs, "pythons", lambda: [self._python(n) for n in names]))

    def _build(self, settings=None):
        """What Bazel's runner was given, and the names of its environment."""
        with contextlib.redirect_stderr(io.StringIO()):
            name = self.backend.build_wheel(str(self.root / "out"), settings)
        self.assertTrue((self.root / "out" / name).exists())
        *words, variables = (self.root / "log").read_text().splitlines()
        return words, variables.split()

    def _refusal(self, function, *arguments):
        with contextlib.redirect_stderr(io.StringIO()), \
                self.assertRaises(SystemExit) as raised:
            function(*arguments)
        text = str(raised.exception)
        self.assertRegex(text, r"\Astratalloc: [^\n]+\Z")
        return text

    def test_build_gets_torch_toolkit_and_interpreter(self):
        words, variables = self._build()
        self.assertEqual(words, [
            "build", f"--repo_env=TORCH_HEADERS={self.root / 'site'}",
            f"--repo_env=CUDA_HOME={self.root / 'cuda'}",
            f"--repo_env=STRATALLOC_PYTHON={self._python('new')}",
            "--repo_env=CUDA_HEADERS="
            f"{self.root / 'site/nvidia/cu13/include'}",
            "//python_shim/wheel"])
        self.assertNotIn("PYTHONPATH", variables)

    def test_whole_toolkit_needs_no_headers_of_torch(self):
        self._write("cuda/include/cusparse.h", "")
        self.assertNotIn("CUDA_HEADERS", " ".join(self._build()[0]))

    def test_interpreter_without_torch_is_passed_over(self):
        self._found_in("bare", "new")
        self.assertIn(f"--repo_env=TORCH_HEADERS={self.root / 'site'}",
                      self._build()[0])

    def test_setting_names_the_interpreter(self):
        self._found_in("bare")
        words, _ = self._build({"torch-python": self._python("new")})
        self.assertIn(f"--repo_env=TORCH_HEADERS={self.root / 'site'}", words)

    def test_missing_torch_names_the_interpreter_and_the_setting(self):
        self._found_in("bare")
        for function, arguments in (
                (self.backend.get_requires_for_build_wheel, ()),
                (self.backend.build_wheel, (str(self.root / "out"),))):
            text = self._refusal(function, *arguments)
            self.assertIn(self._python("bare") + " has no torch", text)
            self.assertIn("--config-settings=torch-python=PATH", text)

    def test_torch_without_a_bridge_is_refused(self):
        self._found_in("old")
        self.assertRegex(
            self._refusal(self.backend.get_requires_for_build_wheel),
            "no bridge for torch 2.10.0.cu130 of .*/old/bin/python: install "
            "torch 2.11 to 2.15$")

    def test_missing_packages_are_named_in_one_line(self):
        (self.root / "tools" / "bazel").unlink()
        (self.root / "include" / "stdio.h").unlink()
        os.environ["PATH"] = str(self.root / "tools")
        self.assertRegex(
            self._refusal(self.backend.get_requires_for_build_wheel),
            "apt-get install bazel-bootstrap bazel-rules-java "
            "bazel-rules-proto libc6-dev")

    def test_headers_of_tests_are_not_needed(self):
        self.assertNotIn("libtest-dev",
                         self.needs.missing_packages(str(self.root)))

    def test_nvcc_is_a_requirement_where_no_toolkit_is(self):
        with mock.patch.object(self.needs, "missing_packages",
                               lambda root: []):
            requires = self.backend.get_requires_for_build_wheel
            self.assertEqual(requires(), [])
            os.environ["CUDA_HOME"] = "/nowhere"
            self.assertEqual(requires(), ["cuda-toolkit[nvcc]==13.0.2"])

    def test_build_without_nvcc_names_the_list(self):
        os.environ["CUDA_HOME"] = "/nowhere"
        self.assertIn(
            "third_party/pip/cuda.txt",
            self._refusal(self.backend.build_wheel, str(self.root / "out")))

    def test_headers_of_cuda_that_nothing_has_are_named(self):
        (self.root / "cuda/include/cublas_v2.h").unlink()
        (self.root / "site/nvidia/cu13/include/cusparse.h").unlink()
        self.assertIn(
            "pip install nvidia-cublas nvidia-cusparse beside torch",
            self._refusal(self.backend.build_wheel, str(self.root / "out")))

    def test_nvcc_of_a_build_environment_is_found(self):
        del os.environ["CUDA_HOME"]
        self._write("site/nvidia/cu13/bin/nvcc", "").chmod(0o755)
        sys.path.append(str(self.root / "site"))
        with mock.patch.object(os, "access", lambda path, _: (
                os.path.exists(path) and not path.startswith("/usr"))):
            self.assertEqual(self.needs.cuda_toolkit(str(self.root)),
                             str(self.root / "site/nvidia/cu13"))

    def test_failed_build_is_one_line_more(self):
        self._write("broken", "")
        self.assertIn("the build failed (exit code 1)", self._refusal(
            self.backend.build_wheel, str(self.root / "out")))

    def test_source_distribution_is_refused(self):
        self.assertIn("pip install .", self._refusal(
            self.backend.build_sdist, str(self.root / "out")))


class PythonsTest(unittest.TestCase):
    def test_environment_of_the_caller_is_looked_at_last(self):
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(sys, "path", [str(_HERE), *sys.path]), \
                mock.patch.dict(os.environ, {"VIRTUAL_ENV": folder}):
            needs = importlib.import_module("build_needs")
            python = os.path.join(folder, "bin", "python")
            self.assertNotIn(python, needs.pythons())
            os.makedirs(os.path.dirname(python))
            open(python, "w", encoding="utf-8").close()
            found = needs.pythons()
            self.assertEqual(found[0], sys.executable)
            self.assertIn(python, found[1:])


if __name__ == "__main__":
    unittest.main()
