# SPDX-License-Identifier: Apache-2.0
"""The wheel holds what it was given, says so in RECORD, and never varies."""

import base64
import hashlib
import os
import tempfile
import unittest
import zipfile

from python_shim.wheel import build_wheel


class BuildWheelTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.source = self._path("a.py")
        with open(self.source, "w", encoding="utf-8") as stream:
            stream.write("A = 1\n")

    def _path(self, name):
        return os.path.join(self._folder.name, name)

    def _build(self, out, *files):
        pairs = [word for pair in files for word in ("--file", pair)]
        build_wheel.main([
            "build", out, "--name", "n", "--version", "1", "--tag",
            "py3-none-any", "--requires", "torch", "--entry-point",
            "console_scripts:n=n.cli:main", *pairs,
        ])

    def test_every_file_is_recorded_with_its_hash(self):
        out = self._path("n.whl")
        self._build(out, f"{self.source}=n/lib/liba.so.1")
        with zipfile.ZipFile(out) as archive:
            record = archive.read("n-1.dist-info/RECORD").decode()
            rows = [line.split(",") for line in record.splitlines()]
            self.assertEqual([row[0] for row in rows], archive.namelist())
            for name, digest, size in rows[:-1]:
                data = archive.read(name)
                want = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
                self.assertEqual(
                    digest, "sha256=" + want.decode().rstrip("=")
                )
                self.assertEqual(int(size), len(data))
            self.assertEqual(
                archive.read("n-1.dist-info/entry_points.txt"),
                b"[console_scripts]\nn = n.cli:main\n",
            )
            mode = archive.getinfo("n/lib/liba.so.1").external_attr >> 16
            self.assertEqual(mode & 0o777, 0o755)

    def test_the_order_of_arguments_does_not_matter(self):
        first, second = self._path("1.whl"), self._path("2.whl")
        self._build(first, f"{self.source}=n/a.py", f"{self.source}=n/b.py")
        os.utime(self.source, (0, 0))
        self._build(second, f"{self.source}=n/b.py", f"{self.source}=n/a.py")
        with open(first, "rb") as one, open(second, "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_one_name_twice_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "two files .* n/a.py"):
            self._build(
                self._path("n.whl"),
                f"{self.source}=n/a.py",
                f"{self.source}=n/a.py",
            )

    def test_unpack_gives_the_files_back(self):
        out = self._path("n.whl")
        self._build(out, f"{self.source}=n/a.py")
        build_wheel.main(["unpack", out, self._path("site")])
        with open(self._path("site/n/a.py"), encoding="utf-8") as stream:
            self.assertEqual(stream.read(), "A = 1\n")


if __name__ == "__main__":
    unittest.main()
