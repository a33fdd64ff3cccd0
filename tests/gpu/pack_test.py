# SPDX-License-Identifier: Apache-2.0
"""The kit's archive is the same for the same files, and never too large."""

import json
import os
import shutil
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

from tests.gpu import kit, pack


class PackTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.source = os.path.join(self.folder, "a.sh")
        with open(self.source, "wb") as file:
            file.write(b"#!/bin/sh\n")

    def _pack(self, name, entries):
        out = os.path.join(self.folder, name)
        pack.pack(entries, out)
        with open(out, "rb") as file:
            return out, file.read()

    def test_same_files_same_bytes(self):
        _, first = self._pack("1.tar", {"run.sh": self.source, "b": b"x"})
        os.utime(self.source, (1, 1))
        out, second = self._pack("2.tar", {"b": b"x", "run.sh": self.source})
        self.assertEqual(first, second)
        with tarfile.open(out) as archive:
            self.assertEqual(
                archive.getnames(), ["gpu-kit/b", "gpu-kit/run.sh"]
            )
            self.assertEqual(archive.getmember("gpu-kit/run.sh").mode, 0o755)

    def test_programs_can_be_started(self):
        out, _ = self._pack("1.tar", {"conformance": self.source, "b": b"x"})
        with tarfile.open(out) as archive:
            modes = {m.name: m.mode for m in archive.getmembers()}
        self.assertEqual(modes["gpu-kit/conformance"], 0o755)
        self.assertEqual(modes["gpu-kit/b"], 0o644)

    def test_too_large_is_refused(self):
        with mock.patch.object(pack, "LIMIT", 1000):
            with self.assertRaisesRegex(SystemExit, "more than 1000"):
                self._pack("1.tar", {"b": os.urandom(2000)})
        self.assertFalse(os.path.exists(os.path.join(self.folder, "1.tar")))


class ConformanceTest(unittest.TestCase):
    """The step as the kit runs it where there is no GPU: the program beside
    kit.py, the simulated pair out of the wheel."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        wheel = os.path.join(self.folder, "stratalloc-1-py3-none-any.whl")
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in ("libcuda.so.1", "libcudart.so.13"):
                archive.write(os.path.join("tests/cudasim", name),
                              "stratalloc/simulated/" + name)
        patch = mock.patch.object(kit, "HERE", self.folder)
        patch.start()
        self.addCleanup(patch.stop)
        self.out = os.path.join(self.folder, "result.conformance.json")

    def _step(self):
        made = kit.Kit(os.path.join(self.folder, "work"))
        return kit.conformance(made, "sim", self.out)

    def test_on_the_simulated_device(self):
        shutil.copy("tests/conformance/conformance", self.folder)
        step = self._step()
        self.assertEqual(step["exit"], 0, step["output"])
        self.assertTrue(step["result"]["ok"])
        self.assertGreater(step["result"]["all"]["documented"], 800)
        self.assertGreater(step["result"]["all"]["unverified"], 50)
        self.assertIn("simulated", step["result"]["facts"]["device"])
        with open(self.out, encoding="utf-8") as file:
            self.assertGreater(len(json.load(file)["checks"]), 850)

    def test_a_program_that_does_not_start_is_said(self):
        step = self._step()
        self.assertEqual(step["exit"], "not started")
        self.assertIn("error", step["result"])


if __name__ == "__main__":
    unittest.main()
