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

    def _build(self, out, *files, name="n", more=()):
        pairs = [word for pair in files for word in ("--file", pair)]
        build_wheel.main([
            "build", out, "--name", name, "--version", "1", "--tag",
            "py3-none-any", "--summary", "S.", "--requires", "torch",
            "--extra", "more:n-more==1", "--extra", "more:n-less",
            "--entry-point",
            "console_scripts:n=n.cli:main", *pairs, *more,
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

    def test_notices_are_where_licences_are_looked_for(self):
        out, notices = self._path("n.whl"), self._path("some")
        with open(notices, "wb") as stream:
            stream.write("© somebody\n".encode())
        self._build(out, more=("--notices", notices))
        with zipfile.ZipFile(out) as archive:
            name = "n-1.dist-info/licenses/NOTICES"
            self.assertEqual(archive.read(name).decode(), "© somebody\n")
            record = archive.read("n-1.dist-info/RECORD").decode()
            self.assertIn(f"\n{name},sha256=", "\n" + record)

    def test_one_name_twice_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "two files .* n/a.py"):
            self._build(
                self._path("n.whl"),
                f"{self.source}=n/a.py",
                f"{self.source}=n/a.py",
            )

    def _metadata(self, *files, more=()):
        out = self._path("n.whl")
        self._build(out, *(files or (f"{self.source}=n/a.py",)), name="n-m",
                    more=more)
        with zipfile.ZipFile(out) as archive:
            return archive.read("n_m-1.dist-info/METADATA").decode()

    def test_what_it_requires_and_what_an_extra_adds(self):
        lines = self._metadata().splitlines()
        self.assertEqual(lines[:6], [
            "Metadata-Version: 2.4", "Name: n-m", "Version: 1", "Summary: S.",
            "Author: The stratalloc maintainers",
            "License-Expression: Apache-2.0"])
        self.assertEqual(lines[lines.index("Requires-Python: >=3.10"):], [
            "Requires-Python: >=3.10",
            "Requires-Dist: torch", "Provides-Extra: more",
            "Requires-Dist: n-more==1 ; extra == 'more'",
            "Requires-Dist: n-less ; extra == 'more'",
        ])

    def test_keywords_and_licence_files_are_in_the_metadata(self):
        metadata = self._metadata(more=(
            "--keyword", "cuda", "--keyword", "gpu", "--license", self.source,
            "--notices", self.source))
        self.assertIn("\nLicense-File: LICENSE\nLicense-File: NOTICES\n"
                      "Keywords: cuda,gpu\nClassifier: ", metadata)

    def test_only_a_wheel_with_py_typed_is_typed(self):
        typed = "Classifier: Typing :: Typed\n"
        self.assertNotIn(typed, self._metadata())
        self.assertIn(typed, self._metadata(f"{self.source}=n/py.typed"))

    def test_description_names_files_and_links_addresses(self):
        readme = self._path("README.md")
        with open(readme, "w", encoding="utf-8") as stream:
            stream.write("See [both](a/b.md), [a.md](a.md), [c](https://c/d) "
                         "[top](#top), `x[0](y)`.\n")
        self.assertTrue(self._metadata(more=("--readme", readme)).endswith(
            "\n\nSee both (a/b.md), a.md, [c](https://c/d) [top](#top), "
            "`x[0](y)`.\n\n"))

    def test_extension_of_the_stable_abi_wants_its_tag(self):
        pair = f"{self.source}=n/_a.abi3.so"
        with self.assertRaisesRegex(SystemExit,
                                    "n/_a.abi3.so wants a tag of abi3"):
            self._build(self._path("n.whl"), pair)
        self._build(self._path("n.whl"), pair,
                    more=("--tag", "cp310-abi3-linux_x86_64"))

    def test_unpack_gives_the_files_back(self):
        wheels = [self._path("n.whl"), self._path("m.whl")]
        for out, name in zip(wheels, ("n", "m")):
            self._build(out, f"{self.source}={name}/a.py", name=name)
        build_wheel.main(["unpack", self._path("site"), *wheels])
        for name in ("n", "m"):
            path = self._path(f"site/{name}/a.py")
            with open(path, encoding="utf-8") as stream:
                self.assertEqual(stream.read(), "A = 1\n")


if __name__ == "__main__":
    unittest.main()
