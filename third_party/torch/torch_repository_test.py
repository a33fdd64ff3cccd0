# SPDX-License-Identifier: Apache-2.0
"""Where torch_repository.bzl finds torch; Starlark is evaluated as Python."""

import os
import pathlib
import tempfile
import types
import unittest

_RULE = pathlib.Path(__file__).resolve().parent / "torch_repository.bzl"


class FailError(Exception):
    """What fail() raises."""


def _fail(text):
    raise FailError(text)


def _context(**environment):
    """A repository context on a machine without an interpreter."""
    def execute(command):
        raise AssertionError(f"{command} is not to be run")

    return types.SimpleNamespace(
        os=types.SimpleNamespace(environ=environment), execute=execute,
        path=lambda path: types.SimpleNamespace(exists=os.path.exists(path)),
        read=lambda path: pathlib.Path(path).read_text(encoding="utf-8"))


class HeadersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.headers = folder.name
        scope = {"repository_rule": lambda **_: None, "fail": _fail}
        exec(_RULE.read_text(encoding="utf-8"), scope)
        self.found = lambda: scope["_found"](
            _context(TORCH_HEADERS=self.headers))

    def _write(self, text):
        path = pathlib.Path(self.headers, "torch", "version.py")
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")

    def test_version_of_headers_is_read_without_an_interpreter(self):
        self._write("from typing import Optional\n\n__all__ = ['__version__']\n"
                    "__version__ = '2.15.0+cu132'\ndebug = False\n")
        self.assertEqual(self.found(), (
            "", self.headers + "/torch", "2.15.0+cu132"))

    def test_folder_without_headers_is_named(self):
        with self.assertRaisesRegex(
                FailError, f"^TORCH_HEADERS={self.headers} has no torch/ver"):
            self.found()

    def test_version_file_without_a_version_is_named(self):
        self._write("debug = False\n")
        with self.assertRaisesRegex(FailError, "has no line __version__$"):
            self.found()


if __name__ == "__main__":
    unittest.main()
