# SPDX-License-Identifier: Apache-2.0
"""The simulated device's wheel: whole, beside the allocator's, never instead."""

import glob
import unittest
import zipfile


def _archive(pattern):
    (path,) = glob.glob(pattern)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class PackageTest(unittest.TestCase):
    def setUp(self):
        self.files = _archive("tests/simulator/cudasim/package/*.whl")
        self.product = _archive("python_shim/wheel/*.whl")

    def _metadata(self, name):
        (text,) = [data for path, data in self.files.items()
                   if path.endswith(f".dist-info/{name}")]
        return text.decode().splitlines()

    def test_it_holds_the_device_and_its_children(self):
        for name in ("lib/libcuda.so.1", "lib/libcudart.so.13",
                     "lib/libnvidia-ml.so.1", "lib/libstratalloc_twins.so", "__init__.py",
                     "around_torch.py",
                     "simulated_child/sitecustomize.py"):
            self.assertIn("stratalloc_cudasim/" + name, self.files)

    def test_any_python_3_may_install_it(self):
        """It has no extension module."""
        self.assertIn("Tag: py3-none-linux_x86_64", self._metadata("WHEEL"))

    def test_the_two_share_no_file(self):
        self.assertEqual(self.files.keys() & self.product.keys(), set())

    def test_it_goes_with_one_version_of_the_allocator(self):
        metadata = self._metadata("METADATA")
        version = metadata[2].removeprefix("Version: ")
        self.assertEqual(metadata[1], "Name: stratalloc-cudasim")
        self.assertIn(f"Requires-Dist: stratalloc=={version}", metadata)
        self.assertTrue(any(
            name.startswith(f"stratalloc-{version}.") for name in self.product
        ))

    def test_it_is_found_by_the_group_that_the_door_asks_for(self):
        door = self.product["stratalloc/simulate.py"].decode()
        (group,) = [line.split('"')[1] for line in door.splitlines()
                    if line.startswith("_GROUP = ")]
        self.assertEqual(self._metadata("entry_points.txt"), [
            f"[{group}]", "cudasim = stratalloc_cudasim"])


if __name__ == "__main__":
    unittest.main()
