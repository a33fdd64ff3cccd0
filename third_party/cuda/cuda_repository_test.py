# SPDX-License-Identifier: Apache-2.0
"""Architectures that kernels are compiled for; Starlark is evaluated as Python."""

import pathlib
import types
import unittest
import unittest.mock

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
# Of CUDA 12.6 and of 13.0.
_OLD = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90]
_NEW = [75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121]


def _definitions(listed, code=0):
    """What the repository writes for an nvcc that lists these."""
    def execute(command):
        text = {"--version": "release 1, V1.2.3\nBuild",
                "--list-gpu-arch": "".join(f"compute_{n}\n" for n in listed)}
        return types.SimpleNamespace(
            stdout=text[command[1]],
            return_code=code if command[1] == "--list-gpu-arch" else 0)

    def path(name):
        return types.SimpleNamespace(
            dirname="/clone", exists=not str(name).startswith("/clone"))

    files = {}
    scope = {"repository_rule": lambda **_: None, "Label": lambda name: name}
    exec((_HERE / "cuda_repository.bzl").read_text(encoding="utf-8"), scope)
    scope["_impl"](types.SimpleNamespace(
        os=types.SimpleNamespace(environ={"CUDA_HOME": "/cuda"}), path=path,
        execute=execute, symlink=lambda *_: None, file=files.__setitem__))
    found = {}
    exec(files["defs.bzl"], found)
    return found


def _architectures(definitions):
    """What bazel/cuda.bzl makes of them."""
    text = (_ROOT / "bazel" / "cuda.bzl").read_text(encoding="utf-8")
    scope = {"load": lambda *_: None, "rule": lambda **_: None, **definitions,
             "attr": unittest.mock.MagicMock(), "CcInfo": None}
    exec(text, scope)
    return scope["CUDA_ARCHS"]


class ArchitecturesTest(unittest.TestCase):
    def test_newest_toolkit_compiles_for_all(self):
        self.assertEqual(_architectures(_definitions(_NEW)),
                         ["75", "80", "86", "89", "90", "100", "120"])

    def test_cuda_12_6_leaves_out_what_it_does_not_know(self):
        self.assertEqual(_architectures(_definitions(_OLD)),
                         ["75", "80", "86", "89", "90"])

    def test_nvcc_that_lists_none_is_no_toolkit(self):
        for found in _definitions([]), _definitions(_NEW, code=1):
            self.assertEqual((found["CUDA_ROOT"], _architectures(found)),
                             ("", []))


if __name__ == "__main__":
    unittest.main()
