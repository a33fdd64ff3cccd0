# SPDX-License-Identifier: Apache-2.0
"""Tags of made wheels, with the libraries that this machine compiles."""

import base64
import hashlib
import os
import subprocess
import tempfile
import unittest
import zipfile

from python_shim.wheel import build_wheel, platform_tag


class PlatformTagTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.source = self._file("a.py", b"A = 1\n")

    def _path(self, *names):
        return os.path.join(self.folder, *names)

    def _file(self, name, data):
        with open(self._path(name), "wb") as stream:
            stream.write(data)
        return self._path(name)

    def _wheel(self, tag, *files):
        out = self._path(f"n-1-{tag}.whl")
        pairs = [word for pair in files for word in ("--file", pair)]
        build_wheel.main(["build", out, "--name", "n", "--version", "1",
                          "--tag", tag, "--summary", "S.", *pairs])
        return out

    def _library(self, name, code):
        """A shared object with the reference that the code has."""
        source = self._file(name + ".c", code.encode())
        out = self._path(name)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", out, source],
                       check=True, timeout=60)
        return out

    def _tagged(self, wheel):
        os.makedirs(self._path("out"), exist_ok=True)
        return platform_tag.tagged(wheel, self._path("out"))

    def test_glibc_is_the_oldest_with_all_symbols(self):
        for found, number in (
            ({}, 17), ({"GLIBC_2": 14}, 17), ({"GLIBC_2": 25}, 26),
            ({"GLIBC_2": 26, "CXXABI_1.3": 11}, 27),
            ({"GLIBC_2": 28, "GLIBCXX_3.4": 24, "CXXABI_1.3": 11}, 28),
            ({"GLIBC_2": 28, "GLIBCXX_3.4": 25}, 31),
            ({"GLIBC_2": 14, "GLIBCXX_3.4": 30}, 35),
            ({"CXXABI_1.3": 12}, 31),
        ):
            with self.subTest(found):
                self.assertEqual(platform_tag.glibc(found), number)

    def test_symbol_newer_than_all_policies_is_an_error(self):
        with self.assertRaisesRegex(platform_tag.TagError, "GLIBC_2': 99"):
            platform_tag.glibc({"GLIBC_2": 99})

    def test_tag_follows_the_newest_library(self):
        old = self._library("old.so", "")
        # A version that every glibc of x86_64 since 2014 has.
        new = self._library("new.so", """
            #define _GNU_SOURCE
            #include <string.h>
            void *f(void *a, void *b, int n) { return memcpy(a, b, n); }""")
        self.assertGreaterEqual(platform_tag.needs(new)["GLIBC_2"], 14)
        wheel = self._wheel("cp310-abi3-linux_x86_64", f"{old}=n/old.abi3.so",
                            f"{new}=n/new.so", f"{self.source}=n/a.py")
        out = self._tagged(wheel)
        self.assertEqual(os.path.basename(out),
                         "n-1-cp310-abi3-manylinux_2_17_x86_64.whl")
        with zipfile.ZipFile(out) as archive:
            self.assertIn("\nTag: cp310-abi3-manylinux_2_17_x86_64\n",
                          archive.read("n-1.dist-info/WHEEL").decode())
            record = archive.read("n-1.dist-info/RECORD").decode()
            rows = [line.split(",") for line in record.splitlines()]
            self.assertEqual([row[0] for row in rows], archive.namelist())
            for name, digest, _ in rows[:-1]:
                want = base64.urlsafe_b64encode(
                    hashlib.sha256(archive.read(name)).digest()).decode()
                self.assertEqual(digest, "sha256=" + want.rstrip("="), name)

    def test_same_wheel_gives_the_same_bytes(self):
        wheel = self._wheel("py3-none-linux_x86_64", f"{self.source}=n/a.py")
        with open(self._tagged(wheel), "rb") as stream:
            first = stream.read()
        with open(self._tagged(wheel), "rb") as stream:
            self.assertEqual(stream.read(), first)

    def test_wheel_for_any_platform_is_copied(self):
        wheel = self._wheel("py3-none-any", f"{self.source}=n/a.py")
        out = self._tagged(wheel)
        self.assertEqual(os.path.basename(out), os.path.basename(wheel))
        with open(out, "rb") as one, open(wheel, "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_policies_ascend(self):
        numbers = platform_tag._POLICIES  # pylint: disable=protected-access
        self.assertEqual(sorted(numbers), list(numbers))
        for column in range(3):
            values = [row[column] for row in numbers]
            self.assertEqual(sorted(values), values)


if __name__ == "__main__":
    unittest.main()
