# SPDX-License-Identifier: Apache-2.0
"""The kit's archive is the same for the same files, and never too large."""

import os
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

from tests.gpu_kit import catalogue
from tests.gpu_kit import pack


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

    def test_minors_are_those_of_the_packed_bridges(self):
        wheels = [os.path.join(self.folder, name) for name in ("1.whl", "2.whl")]
        for wheel, names in zip(wheels, (
            ("stratalloc/lib/libstratalloc_torch_2_15.so",
             "stratalloc/lib/libstratalloc.so",
             "stratalloc/lib/libstratalloc_torch_2_9.so"),
            ("stratalloc_cudasim/lib/libcudasim_torch_2_14.so",),
        )):
            with zipfile.ZipFile(wheel, "w") as archive:
                for name in names:
                    archive.writestr(name, b"")
        self.assertEqual(pack.minors(wheels), ["2.9", "2.15"])

    def test_too_large_is_refused(self):
        with mock.patch.object(pack, "LIMIT", 1000):
            with self.assertRaisesRegex(SystemExit, "more than 1000"):
                self._pack("1.tar", {"b": os.urandom(2000)})
        self.assertFalse(os.path.exists(os.path.join(self.folder, "1.tar")))

    def test_every_step_and_what_it_imports_is_packed(self):
        found = pack.repository()
        for name in ("gpu_kit/kit.py", "gpu_kit/parts.py", "system/e2e/running.py",
                     "system/differential/worker.py", "__init__.py",
                     "gpu_kit/steps/__init__.py",
                     "simulator/cudasim/operator_bridge/simulated.py",
                     *(f"gpu_kit/steps/{step.file}.py" for step in
                       catalogue.STEPS),
                     *(f"system/e2e/{step.of}_test.py" for step in catalogue.STEPS
                       if step.of)):
            self.assertIn("repository/tests/" + name, found)
        self.assertIn("repository/bazel/programs.py", found)


if __name__ == "__main__":
    unittest.main()
