# SPDX-License-Identifier: Apache-2.0
"""headers.py with a made wheel, which a stand-in for pip delivers."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

_HEADERS = str(pathlib.Path(__file__).resolve().parent / "headers.py")

# Copies $WHEEL into --dest, or fails as pip does.
_PIP = """
import os, shutil, sys
with open(os.environ["LOG"], "a") as log:
    print(*sys.argv[1:], file=log)
if not os.path.exists(os.environ["WHEEL"]):
    print("WARNING: a retry", file=sys.stderr)
    sys.exit("ERROR: No matching distribution found for " + sys.argv[-1])
shutil.copy(os.environ["WHEEL"], sys.argv[sys.argv.index("--dest") + 1])
"""
_FILES = {
    "torch/version.py": "__version__ = '2.99.0'\n",
    "torch/include/c10/core/Device.h": "#pragma once\n",
    "torch/lib/libtorch.so": "large",
    "torch/__init__.py": "",
    "functorch/torch/include/other.h": "",
}


class HeadersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.wheel = self.folder / "torch-2.99.0-cp311-cp311-linux_x86_64.whl"
        self.out = self.folder / "out"
        (self.folder / "site" / "pip").mkdir(parents=True)
        (self.folder / "site" / "pip" / "__init__.py").touch()
        (self.folder / "site" / "pip" / "__main__.py").write_text(_PIP)
        (self.folder / "log").touch()

    def _make_wheel(self, files):
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)

    def _run(self, *arguments):
        return subprocess.run(
            [sys.executable, _HEADERS, *(arguments or ("2.99.0", self.out))],
            text=True, capture_output=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": str(self.folder / "site"),
                 "LOG": str(self.folder / "log"), "WHEEL": str(self.wheel)})

    def _found(self):
        return sorted(str(path.relative_to(self.out))
                      for path in self.out.rglob("*") if path.is_file())

    def test_headers_and_version_are_all_that_is_kept(self):
        self._make_wheel(_FILES)
        done = self._run()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines()[-1],
                         str(self.out / "2.99.0"))
        self.assertEqual(self._found(), [
            "2.99.0/torch/include/c10/core/Device.h",
            "2.99.0/torch/version.py"])
        self.assertEqual(os.listdir(self.out), ["2.99.0"])
        asked = (self.folder / "log").read_text()
        self.assertRegex(asked, "^download .*--no-deps .*--only-binary=:all: "
                         ".*--platform manylinux_2_28_x86_64 .*torch==2.99.0$")

    def test_release_that_is_there_is_not_downloaded(self):
        self._make_wheel(_FILES)
        self._run()
        self.wheel.unlink()
        done = self._run()
        self.assertEqual((done.returncode, done.stdout),
                         (0, f"{self.out / '2.99.0'}\n"))
        self.assertEqual(len((self.folder / "log").read_text().splitlines()), 1)

    def _check_error(self, done, text):
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, rf"\Aheaders\.py: {text}\n\Z")
        self.assertEqual(os.listdir(self.out), [])

    def test_error_of_pip_is_one_line(self):
        self._check_error(
            self._run(), "pip download of torch 2.99.0 failed: No matching "
            "distribution found for torch==2.99.0")

    def test_damaged_wheel_is_named(self):
        self.wheel.write_bytes(b"half")
        self._check_error(self._run(), "torch-2.99.0-.*whl is not a wheel: .*")

    def test_wheel_without_headers_leaves_nothing(self):
        for missing in ("include", "version.py"):
            with self.subTest(missing):
                self._make_wheel({name: text for name, text in _FILES.items()
                                  if missing not in name})
                self._check_error(self._run(), "the wheel of torch 2.99.0 has "
                                  f"no torch/{missing}")

    def test_wrong_arguments_print_usage(self):
        done = self._run("2.99.0")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "usage: headers.py VERSION FOLDER\n")


if __name__ == "__main__":
    unittest.main()
