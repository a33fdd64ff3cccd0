# SPDX-License-Identifier: Apache-2.0
"""The wheel by itself, as who serves models has it: nothing in it answers to the
name of a library of CUDA's, and whoever wants the simulated device is told what
to install."""

import ast
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

from python_shim.wheel import build_wheel

_FOLDER = "python_shim/wheel"
# CUDA's driver, runtime, management and collectives; what Python would import
# by itself at its start.
_FOREIGN = re.compile(
    r"lib(cuda|cudart|nvidia|nvrtc|nccl)\b|cudasim|simulated|(site|user)customize"
    r"|\.pth$"
)
# Labels of the system's libraries, and what their notices are headed by.
_LINKED = {
    "expected": "expected (TartanLlama)",
    "liblz4": "LZ4",
    "liburing": "liburing",
    "libzstd": "Zstandard",
    "nlohmann_json": "JSON for Modern C++ (nlohmann/json)",
    "robin_map": "robin-map",
    "xxhash": "xxHash",
    "zlib": "zlib",
}
_FOR_TESTS = {"benchmark", "googletest"}
# The module of a distribution, where that has another name.
_MODULES = {"opentelemetry-sdk": "opentelemetry", "protobuf": "google"}
# The package itself, and packages that the user has for other reasons.
_OF_THE_USER = {
    "stratalloc", "torch", "IPython", "pandas", "pynvml", "pytest",
    "transformers",
}
_INSTALL = (
    "stratalloc: the simulated device is the package stratalloc-cudasim, which "
    "is not installed: pip install 'stratalloc[simulate]'"
)


class AloneTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        (name,) = [
            name for name in os.listdir(_FOLDER) if name.endswith(".whl")
        ]
        cls.wheel = os.path.join(_FOLDER, name)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.site = folder.name
        build_wheel.main(["unpack", cls.site, cls.wheel])

    def _python(self, *arguments):
        """Without site-packages: what is installed there is not the question."""
        return subprocess.run(
            [sys.executable, "-S", *arguments], text=True, check=False,
            env={**os.environ, "PYTHONPATH": self.site},
            capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
        )

    def test_it_holds_no_library_of_cuda(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
        self.assertIn("stratalloc/lib/libstratalloc.so", names)
        self.assertEqual(
            [name for name in names if _FOREIGN.search(name)], []
        )

    def test_tag_and_name_are_those_of_the_stable_abi(self):
        self.assertRegex(os.path.basename(self.wheel),
                         r"-cp310-abi3-linux_x86_64\.whl$")
        with open(os.path.join(_FOLDER, "wheel.name"),
                  encoding="utf-8") as stream:
            self.assertEqual(stream.read(),
                             os.path.basename(self.wheel) + "\n")

    def test_metadata_has_no_link_to_a_file(self):
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist()
                       if name.endswith(".dist-info/METADATA")]
            links = re.findall(r"\]\(([^)\s]+)\)", archive.read(name).decode())
        self.assertEqual(
            [link for link in links if not link.startswith("https://")], [])

    def test_start_of_an_interpreter_runs_nothing_of_it(self):
        """Files that an interpreter executes or imports at its start."""
        for opted_in in ("", "0", "1"):
            done = subprocess.run(
                [sys.executable, "-I", "-X", "importtime", "-c",
                 "import site, sys; site.addsitedir(sys.argv[1]); "
                 "print([name for name in sys.modules "
                 "if 'stratalloc' in name], sys.path[-1])", self.site],
                text=True, check=True, capture_output=True, timeout=60,
                env={**os.environ, "STRATALLOC": opted_in})
            self.assertEqual(done.stdout, f"[] {self.site}\n")
            self.assertNotIn("stratalloc", done.stderr)

    def test_entry_point_that_is_off_imports_two_modules(self):
        """What `import torch` has imported before it is not counted."""
        program = ("import importlib, os, sys, typing; there = set(sys.modules)\n"
                   "from stratalloc._autoload import autoload; autoload()\n"
                   "print(*sorted(set(sys.modules) - there))")
        for opted_in in ("", "0"):
            with mock.patch.dict(os.environ, {"STRATALLOC": opted_in}):
                done = self._python("-c", program)
            self.assertEqual((done.stdout, done.stderr),
                             ("stratalloc stratalloc._autoload\n", ""))

    def test_what_is_linked_into_it_has_its_notice(self):
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist()
                       if name.endswith(".dist-info/licenses/NOTICES")]
            parts = re.split(r"={72}\n(.+)\nhttps://.+\n={72}\n",
                             archive.read(name).decode())
        texts = dict(zip(parts[1::2], parts[2::2]))
        with open("third_party/repositories.bzl", encoding="utf-8") as stream:
            found = stream.read().partition("_SYSTEM_LIBRARIES = {\n")[2]
        labels = re.findall(r'^    "(\w+)": \(', found.partition("\n}\n")[0],
                            re.MULTILINE)
        self.assertEqual(set(labels), set(_LINKED) | _FOR_TESTS)
        self.assertEqual(set(texts), set(_LINKED.values()))
        for title, text in texts.items():
            with self.subTest(title):
                self.assertRegex(text, r"(?i)copyright .*\d{4}|\(c\) \w+")
                self.assertRegex(text, "(?i)warrant")

    def test_the_bridge_measures_nothing(self):
        with zipfile.ZipFile(self.wheel) as archive:
            bridges = [name for name in archive.namelist()
                       if name.startswith("stratalloc/lib/libstratalloc_torch_")]
            self.assertTrue(bridges)
            for name in bridges:
                found = re.search(rb"\w*bench\w*|\w+_ns\b", archive.read(name))
                self.assertIsNone(found, name)

    def _metadata(self):
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
            return archive.read(name).decode().splitlines()

    def test_each_imported_package_is_required_or_of_an_extra(self):
        lines = [line.removeprefix("Requires-Dist: ")
                 for line in self._metadata()
                 if line.startswith("Requires-Dist: ")]
        required = {re.split(r"[<>=]", line)[0]
                    for line in lines if ";" not in line}
        extra = {line.split(" ;")[0] for line in lines if ";" in line}
        imported = set()
        for path in pathlib.Path(self.site).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split(".")[0]
                                 for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported.add(node.module.split(".")[0])
        known = {_MODULES.get(name, name) for name in required | extra}
        self.assertEqual(
            imported - sys.stdlib_module_names - known - _OF_THE_USER,
            set())
        self.assertEqual(
            {_MODULES.get(name, name) for name in required} - imported, set())

    def test_types_are_marked(self):
        self.assertEqual(
            pathlib.Path(self.site, "stratalloc", "py.typed").read_bytes(), b"")
        self.assertIn("Classifier: Typing :: Typed", self._metadata())

    def test_the_extra_names_the_other_package(self):
        lines = self._metadata()
        version = os.path.basename(self.wheel).split("-")[1]
        self.assertIn("Provides-Extra: simulate", lines)
        self.assertIn(
            f"Requires-Dist: stratalloc-cudasim=={version} ; "
            "extra == 'simulate'", lines,
        )

    def test_every_command_that_simulates_says_what_to_install(self):
        for command in (
            ("run", "--simulate", "64MiB", "-m", "this"),
            ("demo",),
            ("demo", "--card", "h200"),
            ("bench",),
        ):
            with self.subTest(command):
                done = self._python("-m", "stratalloc", *command)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertEqual(done.stderr.splitlines(), [_INSTALL])
                self.assertEqual(done.stdout, "")

    def test_every_command_on_files_says_what_to_install(self):
        for command in (
            "convert", "validate", "summary", "tree", "peak", "diff", "leaks",
            "recover", "metrics", "fit", "report",
        ):
            with self.subTest(command):
                done = self._python("-m", "stratalloc", command, self.wheel)
                self.assertEqual((done.returncode, done.stdout), (3, ""))
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertRegex(
                    done.stderr, f"^stratalloc {command}: .*No module named "
                    r"'\w+'.*`pip install stratalloc`$")

    def test_a_program_that_simulates_is_told(self):
        done = self._python(
            "-c", "from stratalloc import simulate\n"
            "print(simulate.loaded(), repr(simulate.label()))\n"
            "simulate.load('64MiB')",
        )
        self.assertEqual(done.stdout, "False ''\n")
        self.assertEqual(
            done.stderr.splitlines()[-1],
            "stratalloc.simulate.NotInstalledError: " + _INSTALL,
        )

    def test_the_doctor_notes_it(self):
        done = self._python("-m", "stratalloc", "doctor")
        (line,) = [
            line for line in done.stdout.splitlines()
            if "simulated device" in line
        ]
        self.assertEqual(
            line.split(None, 3),
            ["note", "simulated", "device",
             "not installed: pip install 'stratalloc[simulate]'"],
        )

    def test_a_program_without_a_device_runs(self):
        done = self._python(
            "-m", "stratalloc", "run", "--allocator", "native", "-m", "this")
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
