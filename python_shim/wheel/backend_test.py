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
import types
import unittest
from unittest import mock

_HERE = pathlib.Path(__file__).resolve().parent
_RELEASES = "python_shim/stratalloc/_native/releases.py"

_FILES = {
    "third_party/torch/minors.txt": "# minors\n2.11.0\n2.15.0\n",
    "third_party/pip/cuda.txt": "# nvcc\ncuda-toolkit[nvcc]==13.0.2\n",
    "third_party/repositories.bzl": """
_SYSTEM_LIBRARIES = {
    "stdio": ("stdio.h", ["c"], True, "libc6-dev"),
    "tests": ("no/test.h", ["test"], False, "libtest-dev"),
}
native.local_repository(
    name = "rules_java",
    path = "ROOT/rules/rules_java",
)
native.local_repository(
    name = "rules_proto",
    path = "ROOT/rules/rules_proto",
)
native.local_repository(
    name = "rules_cc",
    path = "third_party/rules_cc",
)
""",
    "rules/rules_java/BUILD": "",
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
    print(os.environ["HOME"], file=log)
os.makedirs("bin/python_shim/wheel", exist_ok=True)
for version in "0", "1":
    with open(f"bin/python_shim/wheel/stratalloc-{version}.whl", "w"):
        pass
with open("bin/python_shim/wheel/wheel.name", "w") as name:
    print("stratalloc-1.whl", file=name)
sys.exit(os.path.exists("broken"))
""",
}
_PROGRAMS = {
    # Each answers what it is asked for its version, as these variables have it.
    "tools/bazel": """
case "$1 $2" in
  "--version ") [ -n "$BAZEL_SAYS" ] || { echo no network >&2; exit 1; }
                echo "bazel $BAZEL_SAYS" ;;
  "info bazel-bin") echo "$PWD/bin" ;;
esac""",
    "tools/g++": 'echo "#define __cplusplus ${GXX_SAYS}L"',
    "tools/clang": 'echo "#define __cplusplus 202002L"',
    "cuda/bin/nvcc": """
[ -z "$NVCC_SAYS" ] || { echo "$NVCC_SAYS" >&2; echo later >&2; exit 1; }""",
    "old/bin/python": "echo SITE; echo 2.10.0+cu130; echo 13.0",
    "new/bin/python": "echo SITE; echo 2.15.0+cu132; echo 13.2",
    "cpu/bin/python": "echo SITE; echo 2.15.0+cpu; echo",
    "cu12/bin/python": "echo SITE; echo 2.11.0+cu126; echo 12.6",
    "alpha/bin/python": "echo SITE; echo 2.15.0a0+nv26.01; echo 13.2",
    "nightly/bin/python": "echo SITE; echo 2.15.0.dev20260101+cu132; echo 13.2",
    "candidate/bin/python": "echo SITE; echo 2.15.0rc1+cu132; echo 13.2",
    "bare/bin/python": "",
}


class BackendTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        for name, text in _FILES.items():
            self._write(name, text.replace("ROOT", str(self.root)))
        for name, text in _PROGRAMS.items():
            text = text.replace("SITE", str(self.root / "site"))
            self._write(name, f"#!/bin/sh\n{text}\n").chmod(0o755)
        place = self.root / "python_shim" / "wheel"
        place.mkdir(parents=True)
        for name in ("backend.py", "build_environment.py", "build_needs.py",
                     "build_tools.py"):
            shutil.copy(_HERE / name, place)
        self._write(_RELEASES, (_HERE.parents[1] / _RELEASES).read_text())
        self._patch(mock.patch.object(sys, "path", [str(place), *sys.path]))
        self._patch(mock.patch.dict(sys.modules))
        for name in ("backend", "build_environment", "build_needs",
                     "build_tools"):
            sys.modules.pop(name, None)
        self.backend = importlib.import_module("backend")
        self.environment = importlib.import_module("build_environment")
        self.needs = importlib.import_module("build_needs")
        self._patch(mock.patch.object(
            self.needs, "_PREFIXES", (str(self.root),)))
        self._patch(mock.patch.dict(os.environ, {
            "PATH": f"{self.root / 'tools'}:/usr/bin:/bin",
            "HOME": str(self.root), "BAZEL_SAYS": "7.4.1",
            "GXX_SAYS": "202002", "NVCC_SAYS": "",
            "CUDA_HOME": str(self.root / "cuda"), "PYTHONPATH": "/of/pip"}))
        os.environ.pop("CC", None)
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
            self.environment, "pythons", lambda: [self._python(n) for n in names]))

    def _build(self, settings=None):
        """What Bazel's runner was given, the names of its environment, and its
        home."""
        with contextlib.redirect_stderr(io.StringIO()):
            name = self.backend.build_wheel(str(self.root / "out"), settings)
        self.assertEqual(os.listdir(self.root / "out"), [name])
        *words, variables, home = (self.root / "log").read_text().splitlines()
        return words, variables.split(), home

    def _refusal(self, function, *arguments):
        with contextlib.redirect_stderr(io.StringIO()), \
                self.assertRaises(SystemExit) as raised:
            function(*arguments)
        text = str(raised.exception)
        self.assertRegex(text, r"\Astratalloc: [^\n]+\Z")
        return text

    def _hooks(self):
        """Those that pip calls, with their arguments; without isolation it
        calls the second alone."""
        return ((self.backend.get_requires_for_build_wheel, ()),
                (self.backend.build_wheel, (str(self.root / "out"),)))

    def test_build_gets_torch_toolkit_and_interpreter(self):
        words, variables, home = self._build()
        self.assertEqual(words, [
            "build", f"--repo_env=TORCH_HEADERS={self.root / 'site'}",
            f"--repo_env=CUDA_HOME={self.root / 'cuda'}",
            f"--repo_env=STRATALLOC_PYTHON={self._python('new')}",
            "--repo_env=CUDA_HEADERS="
            f"{self.root / 'site/nvidia/cu13/include'}",
            "//python_shim/wheel"])
        self.assertNotIn("PYTHONPATH", variables)
        self.assertEqual(home, str(self.root))

    def test_wheel_of_an_earlier_version_is_passed_over(self):
        self._build()
        self.assertEqual(os.listdir(self.root / "out"), ["stratalloc-1.whl"])

    def test_missing_home_is_a_folder_of_the_build(self):
        for home in (None, "/nowhere"):
            with self.subTest(home):
                os.environ.pop("HOME")
                os.environ.update({"HOME": home} if home else {})
                self.assertEqual(self._build()[2],
                                 str(self.root / "build/home"))
                os.environ["HOME"] = ""
        self.assertTrue((self.root / "build/home").is_dir())

    def test_clone_that_cannot_be_written_is_named(self):
        self._write("build", "")
        for function, arguments in self._hooks():
            self.assertRegex(
                self._refusal(function, *arguments),
                f"cannot write into {self.root}: .* install from a clone")

    def test_whole_toolkit_needs_no_headers_of_torch(self):
        self._write("cuda/include/cusparse.h", "")
        self.assertNotIn("CUDA_HEADERS", " ".join(self._build()[0]))

    def test_interpreter_without_torch_is_passed_over(self):
        self._found_in("bare", "new")
        self.assertIn(f"--repo_env=TORCH_HEADERS={self.root / 'site'}",
                      self._build()[0])

    def test_setting_names_the_interpreter(self):
        self._found_in("bare")
        words = self._build({"torch-python": self._python("new")})[0]
        self.assertIn(f"--repo_env=TORCH_HEADERS={self.root / 'site'}", words)

    def test_setting_is_a_path_from_here_or_a_program(self):
        """The probe runs elsewhere, and Bazel wants a whole path."""
        (self.root / "tools/python9").symlink_to(self._python("new"))
        for setting, python in (
                (os.path.relpath(self._python("new")), self._python("new")),
                ("python9", str(self.root / "tools/python9"))):
            with self.subTest(setting):
                self.assertIn(f"--repo_env=STRATALLOC_PYTHON={python}",
                              self._build({"torch-python": setting})[0])

    def test_missing_torch_names_the_interpreter_and_the_setting(self):
        self._found_in("bare")
        for function, arguments in self._hooks():
            text = self._refusal(function, *arguments)
            self.assertIn(self._python("bare") + " has no torch", text)
            self.assertIn("--config-settings=torch-python=PATH", text)

    def test_unknown_environment_names_the_setting_alone(self):
        self._found_in()
        for function, arguments in self._hooks():
            self.assertRegex(
                self._refusal(function, *arguments),
                "nothing says which environment's torch the wheel is for: pass "
                "--config-settings=torch-python=PATH ")

    def test_torch_without_a_bridge_is_refused(self):
        self._found_in("old")
        self.assertRegex(
            self._refusal(self.backend.get_requires_for_build_wheel),
            "no bridge for torch 2.10.0.cu130 of .*/old/bin/python: install "
            "torch 2.11 to 2.15$")

    def test_torch_that_is_no_release_is_refused_before_compiling(self):
        for name, version in (("alpha", "2.15.0a0+nv26.01"),
                              ("nightly", "2.15.0.dev20260101+cu132"),
                              ("candidate", "2.15.0rc1+cu132")):
            self._found_in(name)
            for function, arguments in self._hooks():
                with self.subTest(name, hook=function.__name__):
                    self.assertEqual(
                        self._refusal(function, *arguments),
                        f"stratalloc: torch {version} is not a release, and "
                        "bridges are built for releases only: install one into "
                        f"the environment of {self._python(name)}, pip install "
                        '--force-reinstall "torch>=2.11,<2.16,!=2.12.*,'
                        '!=2.13.*,!=2.14.*"')

    def test_interpreter_that_the_tag_excludes_is_refused(self):
        """Each refused by pip itself, but after the whole build."""
        def system(implementation="cpython", platform="linux"):
            return types.SimpleNamespace(
                implementation=types.SimpleNamespace(name=implementation),
                platform=platform, executable=sys.executable)

        for name, value, text in (
                ("sys", system("pypy"), "is pypy: "),
                ("sys", system(platform="darwin"), "is darwin x86_64: "),
                ("platform.machine", lambda: "aarch64", "is linux aarch64: "),
                ("sysconfig.get_config_var",
                 lambda name: name == "Py_GIL_DISABLED",
                 "is a free-threaded Python: ")):
            *path, attribute = name.split(".")
            target = getattr(self.needs, path[0]) if path else self.needs
            for function, arguments in self._hooks():
                with mock.patch.object(target, attribute, value):
                    refusal = self._refusal(function, *arguments)
                self.assertIn(
                    f"{sys.executable} {text}install into CPython with a "
                    "global lock, on Linux x86-64", refusal)

    def test_torch_without_cuda_is_refused(self):
        self._found_in("cpu")
        for function, arguments in self._hooks():
            self.assertRegex(
                self._refusal(function, *arguments),
                "torch 2.15.0.cpu of .*/cpu/bin/python is built without CUDA: "
                "uninstall it, and install torch 2.11 to 2.15 for CUDA")

    def test_missing_packages_are_named_in_one_line(self):
        (self.root / "tools" / "bazel").unlink()
        (self.root / "include" / "stdio.h").unlink()
        os.environ["PATH"] = str(self.root / "tools")
        for function, arguments in self._hooks():
            self.assertRegex(
                self._refusal(function, *arguments),
                "apt-get install bazel-bootstrap bazel-rules-java "
                "bazel-rules-proto libc6-dev")

    def test_bazel_without_its_rules_names_their_packages(self):
        """Debian's, which repositories.bzl gives folders of the system."""
        os.environ["BAZEL_SAYS"] = "no_version"
        for function, arguments in self._hooks():
            self.assertTrue(self._refusal(function, *arguments).endswith(
                "apt-get install bazel-rules-proto"))
        self._write("rules/rules_proto/BUILD", "")
        self._build()

    def test_bazel_of_another_version_names_those_that_work(self):
        for version, text in (
                ("8.0.0rc1", "bazel 8.0.0rc1 is too new"),
                ("10.1.0", "bazel 10.1.0 is too new"),
                ("3.7.2", "bazel 3.7.2 is too old"),
                ("", "bazel --version fails (no network)")):
            os.environ["BAZEL_SAYS"] = version
            for function, arguments in self._hooks():
                with self.subTest(version, hook=function.__name__):
                    self.assertIn(
                        f"stratalloc: {text}; this clone needs Bazel 4 to 7: "
                        "with Bazelisk, set USE_BAZEL_VERSION=7.x; else "
                        "apt-get install bazel-bootstrap",
                        self._refusal(function, *arguments))
        for version in "4.2.3-", "7.6.1":
            with self.subTest(version):
                os.environ["BAZEL_SAYS"] = version
                self._build()
                shutil.rmtree(self.root / "out")

    def test_compiler_without_cpp20_names_one_that_has_it(self):
        os.environ["GXX_SAYS"] = "201709"
        for function, arguments in self._hooks():
            self.assertRegex(
                self._refusal(function, *arguments),
                r"g\+\+ does not have the whole of C\+\+20: install g\+\+ 11 or "
                "newer .*apt-get install gcc-11")
        os.environ["CC"] = "clang"
        self._build()

    def test_nvcc_that_cannot_compile_gives_its_error(self):
        os.environ["NVCC_SAYS"] = "nvcc fatal : Value 'c++20' is not defined"
        for function, arguments in self._hooks():
            with self.subTest(function.__name__):
                self.assertRegex(
                    self._refusal(function, *arguments),
                    r"cuda/bin/nvcc cannot compile C\+\+20 with this compiler "
                    r"\(.*'c\+\+20' is not defined\): set CUDA_HOME to CUDA 12")

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
            "missing, cublas_v2.h, cusparse.h: pip install nvidia-cublas "
            "nvidia-cusparse beside torch, or set CUDA_HOME",
            self._refusal(self.backend.build_wheel, str(self.root / "out")))

    def test_packages_of_cuda_13_are_no_advice_for_torch_of_cuda_12(self):
        self._found_in("cu12")
        (self.root / "site/nvidia/cu13/include/cusparse.h").unlink()
        text = self._refusal(self.backend.build_wheel, str(self.root / "out"))
        self.assertIn("missing, cusparse.h: set CUDA_HOME to a toolkit that "
                      "has them", text)
        self.assertNotIn("pip install", text)

    def test_cuda_home_without_nvcc_leaves_that_of_pip(self):
        """As pip, which was asked for it, has put it there."""
        os.environ["CUDA_HOME"] = str(self.root / "runtime")
        self._write("overlay/nvidia/cu13/bin/nvcc", "#!/bin/sh").chmod(0o755)
        for name in ("cublas_v2.h", "cusolverDn.h"):
            self._write("site/nvidia/cu13/include/" + name, "")
        sys.path.append(str(self.root / "overlay"))
        self.assertIn(
            f"--repo_env=CUDA_HOME={self.root / 'overlay/nvidia/cu13'}",
            self._build()[0])

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

    def test_editable_installation_is_refused(self):
        self.assertIn("run pip install . again", self._refusal(
            self.backend.build_editable, str(self.root / "out")))

    def test_source_distribution_is_refused(self):
        self.assertIn("pip install .", self._refusal(
            self.backend.build_sdist, str(self.root / "out")))


if __name__ == "__main__":
    unittest.main()
