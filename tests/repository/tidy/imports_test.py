# SPDX-License-Identifier: Apache-2.0
"""Circles of imports and imports to the right, each planted in a small tree."""

import unittest

from tests.repository.tidy.planted_tree import CLEAN, SPDX, RuleCase


class ImportsTest(RuleCase):
    def test_import_cycles(self):
        package = "python_shim/door/"
        clean = {
            "python_shim/BUILD.bazel": CLEAN["python_shim/BUILD.bazel"]
            + 'py_library(name = "p", srcs = glob(["door/*.py"]))\n',
            package + "__init__.py": f"# {SPDX}from door import a\n",
            package + "a.py": f"# {SPDX}import os\nfrom door import b\n",
            package + "b.py": f"# {SPDX}from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from door import a\n",
        }
        self.assertEqual(self._complaints(clean), {})
        for back in ("from door import a\n", "import door.a\n",
                     "from door.a import x\n",
                     "def f():\n    from door import a\n"):
            with self.subTest(back):
                self._expect(
                    "import_cycles",
                    "python_shim/door/a.py: door.a -> door.b -> door.a",
                    {**clean, package + "b.py": f"# {SPDX}{back}"},
                )

    def _package(self, modules):
        """The package and its compat modules; text by the path below them."""
        return {
            "python_shim/stratalloc/BUILD.bazel": f"# {SPDX}"
            'py_library(name = "p", srcs = glob(["**/*.py"]))\n',
            "python_shim/compat/BUILD.bazel": f"# {SPDX}"
            'py_library(name = "p", srcs = glob(["**/*.py"]))\n',
            **{f"python_shim/{path}": f"# {SPDX}{text}"
               for path, text in modules.items()},
        }

    def test_imports_to_the_left_of_the_package(self):
        self.assertEqual(self._complaints(self._package({
            "stratalloc/__init__.py": "from stratalloc._enable import enable\n",
            "stratalloc/_enable.py": "from stratalloc._native import core\n"
            "from stratalloc import settings\n",
            "stratalloc/_native/core.py": "import stratalloc\n",
            "stratalloc/settings.py": "from stratalloc._native import core\n",
            "compat/__init__.py": "from stratalloc.compat._package import x\n",
            "compat/_package.py": "from stratalloc import settings\n",
        })), {})

    def test_upward_import_between_layers_of_the_package(self):
        for line in ("from stratalloc._reports import diff\n",
                     "from stratalloc._reports.diff import mark\n",
                     "import stratalloc._reports.diff\n",
                     "def f():\n    from stratalloc._reports import diff\n"):
            with self.subTest(line):
                self._expect(
                    "upward_imports",
                    f"python_shim/stratalloc/_native/core.py:"
                    f"{2 + line.startswith('def')}: the layer _native of the "
                    "package imports stratalloc._reports.diff",
                    self._package({
                        "stratalloc/_native/core.py": line,
                        "stratalloc/_reports/diff.py": "",
                    }))

    def test_upward_import_by_a_module_at_the_top_of_the_package(self):
        self._expect(
            "upward_imports",
            "python_shim/stratalloc/settings.py:2: the layer settings of the "
            "package imports stratalloc._enable",
            self._package({
                "stratalloc/settings.py": "from stratalloc import _enable\n",
                "stratalloc/_enable.py": "",
            }))

    def test_folder_without_a_place_in_the_package(self):
        self._expect(
            "upward_imports",
            "python_shim/stratalloc/_attic/old.py: stratalloc._attic is no layer",
            self._package({"stratalloc/_attic/old.py": ""}))

    def test_package_that_imports_compat(self):
        self._expect(
            "upward_imports",
            "python_shim/stratalloc/_enable.py:2: the layer _enable of the "
            "package imports stratalloc.compat._names",
            self._package({
                "stratalloc/_enable.py":
                "from stratalloc.compat import _names\n",
                "compat/_names.py": "",
            }))

    def test_compat_that_imports_the_package_beside_its_door(self):
        for line, other in (
            ("from stratalloc import settings\n", "stratalloc.settings"),
            ("from stratalloc import evict\n", "stratalloc"),
            ("import stratalloc\n", "stratalloc"),
            ("import stratalloc.settings\n", "stratalloc.settings"),
            ("from stratalloc.settings import Config\n",
             "stratalloc.settings"),
        ):
            with self.subTest(line):
                self._expect(
                    "package_doors",
                    "python_shim/compat/memlord/tracker.py:2: "
                    f"stratalloc.compat imports {other}; import it from "
                    "stratalloc.compat._package",
                    self._package({
                        "stratalloc/settings.py": "",
                        "compat/memlord/tracker.py": line,
                        "compat/tests/test_tracker.py": line,
                    }))

    def test_reader_of_recordings_that_imports_the_package(self):
        room = {
            "telemetry/README.md": "",
            "telemetry/python/model/README.md": "",
            "telemetry/python/model/BUILD.bazel": f"# {SPDX}"
            'py_library(name = "model", srcs = glob(["*.py"]))\n',
            "telemetry/python/model/model.py": f"# {SPDX}",
            "telemetry/python/model/replay.py": f"# {SPDX}"
            "from stratalloc.telemetry import model\n",
            **self._package({
                "stratalloc/_native/core.py": "",
                "stratalloc/telemetry/gaps.py": "",
                "stratalloc/telemetry/files.py":
                "from stratalloc.telemetry import gaps, replay\n",
            }),
        }
        self.assertEqual(self._complaints(room), {})
        for line, other in (
            ("from stratalloc._native import core\n",
             "stratalloc._native.core"),
            ("from stratalloc.telemetry import gaps\n",
             "stratalloc.telemetry.gaps"),
            ("import stratalloc\n", "stratalloc"),
        ):
            with self.subTest(line):
                self._expect(
                    "package_doors",
                    "telemetry/python/model/model.py:2: telemetry/python/model "
                    f"imports {other}",
                    {**room,
                     "telemetry/python/model/model.py": f"# {SPDX}{line}"})


if __name__ == "__main__":
    unittest.main()
