# SPDX-License-Identifier: Apache-2.0
"""What both sitecustomize.py stand on, with a torch of one line."""

import os
import subprocess
import sys
import tempfile
import unittest

_AROUND = os.path.abspath(
    "tests/simulator/cudasim/package/stratalloc_cudasim/around_torch.py")
_LOAD = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("around_torch", {_AROUND!r})
around = importlib.util.module_from_spec(spec)
spec.loader.exec_module(around)
here = os.path.dirname(os.path.abspath(__file__))
"""


class AroundTorchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self._root = folder.name

    def _write(self, folder, name, text):
        path = os.path.join(self._root, folder)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, name), "w", encoding="utf-8") as stream:
            stream.write(text)
        return path

    def _run(self, code, *path):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True,
            env={"PYTHONPATH": os.pathsep.join(path)}, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def _around(self, say):
        return self._write("around", "sitecustomize.py", _LOAD + f"""
def before():
    {say}
around.around_torch(before, lambda torch: print("after", torch.value))
""")

    def test_before_and_after_the_first_import(self):
        torch = self._write("torch", "__init__.py",
                            "print('torch')\nvalue = 7\n")
        self.assertEqual(
            self._run("import json, torch, importlib\n"
                      "print(type(torch.__loader__).__module__)\n"
                      "importlib.reload(torch)",
                      self._around("print('before')"), os.path.dirname(torch)),
            ["before", "torch", "after", "7", "_frozen_importlib_external",
             "torch"])

    def test_nothing_without_torch(self):
        around = self._around("print('before')")
        self.assertEqual(self._run("import json", around), [])
        # One that cannot be found is missing, as ever.
        self.assertEqual(
            self._run("try:\n  import torch\n"
                      "except ModuleNotFoundError as e: print(e.name)", around),
            ["torch"])

    def test_what_comes_before_may_fail(self):
        torch = self._write("torch", "__init__.py", "")
        self.assertEqual(
            self._run("try:\n  import torch\nexcept ValueError as e: print(e)",
                      self._around("raise ValueError('no')"),
                      os.path.dirname(torch)),
            ["no"])

    def test_each_sitecustomize_has_one_turn(self):
        places = [
            self._write(name, "sitecustomize.py",
                        _LOAD + f"print({name!r})\naround.pass_turn(here)\n")
            for name in ("one", "two")
        ]
        last = self._write("last", "sitecustomize.py", "print('last')\n")
        say = "import sys; print(sys.modules['sitecustomize'].__file__)"
        self.assertEqual(
            self._run(say, *places, last),
            ["one", "two", "last", os.path.join(last, "sitecustomize.py")])

    def test_one_that_is_not_on_the_path_has_no_turn_to_pass(self):
        # Whoever runs it by its place is the sitecustomize of the path.
        shared = self._write("shared", "sitecustomize.py",
                             _LOAD + "print('shared')\naround.pass_turn(here)")
        caller = self._write("caller", "sitecustomize.py", f"""
print("caller")
import importlib.util
spec = importlib.util.spec_from_file_location(
    "shared", {os.path.join(shared, "sitecustomize.py")!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
""")
        self.assertEqual(self._run("", caller), ["caller", "shared"])


if __name__ == "__main__":
    unittest.main()
