# SPDX-License-Identifier: Apache-2.0
"""Targets past a room's doors, each planted in a small tree."""

import unittest

from tests.repository.tidy.planted_tree import CLEAN, SPDX, RuleCase


class DoorsTest(RuleCase):
    def _build(self, room, *lines):
        """A room's BUILD file with more in it."""
        path = room + "/BUILD.bazel"
        return {path: CLEAN[path] + "".join(line + "\n" for line in lines)}

    def test_targets_past_the_door(self):
        for label in ("//allocator:block", "//allocator/base:lock_ranks",
                      "//allocator/base:device"):
            for use in (f'deps = ["{label}"]', f'data = {{"{label}": "x"}}',
                        f'linkopts = ["$(location {label})"]'):
                with self.subTest(use):
                    other = label[2:].partition(":")[0]
                    self._expect(
                        "room_doors",
                        f"python_shim/BUILD.bazel: core names {label}; the "
                        f"doors of that room are //{other} and,",
                        self._build("python_shim",
                                    f'cc_library(name = "core", {use})'),
                    )

    def test_targets_to_the_right(self):
        for label in ("//python_shim", "//tests/simulator/cudasim:sim"):
            with self.subTest(label):
                self._expect(
                    "room_doors",
                    f"allocator/BUILD.bazel: core names {label}, which is to "
                    "the right of allocator",
                    self._build("allocator", 'cc_library(name = "core", '
                                f'deps = ["{label}"])'),
                )

    def test_targets_that_are_too_visible(self):
        public = '["//visibility:public"]'
        for line, says in (
            (f"package(default_visibility = {public})",
             "default_visibility //visibility:public"),
            ('package(default_visibility = ["//:__subpackages__"])',
             "default_visibility //:__subpackages__"),
            ('package(default_visibility = ["//allocator/base:__pkg__"])',
             "default_visibility //allocator/base:__pkg__"),
            (f'cc_library(name = "core", visibility = {public})',
             "core is visible to //visibility:public"),
            ('cc_library(name = "core", '
             'visibility = ["//python_shim:__pkg__"])',
             "core is visible to //python_shim:__pkg__"),
            ('cc_library(name = "core", visibility = [":friends"])',
             "core is visible to :friends"),
            ('exports_files(["block.h"])', "exports_files without visibility"),
            (f'exports_files(["block.h"], visibility = {public})',
             "exports_files is visible to //visibility:public"),
        ):
            with self.subTest(line):
                self._expect("room_doors", f"allocator/BUILD.bazel: {says}",
                             self._build("allocator", line))

    def test_rooms_that_use_their_doors(self):
        self.assertEqual(self._complaints({
            **self._build(
                "allocator",
                'package(default_visibility = ["//visibility:private"])',
                'cc_library(name = "allocator", '
                'visibility = ["//visibility:public"])',
                'cc_library(name = "values", deps = ["//allocator/base"], '
                'visibility = ["//visibility:public"])',
                'cc_library(name = "sources", visibility = '
                '["//allocator:__subpackages__", "//tests:__subpackages__"])',
                'cc_library(name = "rig", testonly = True, '
                'deps = ["//tests/simulator/cudasim:sim"])',
                'py_binary(name = "tool", visibility = ["//bazel:__pkg__"])',
                'exports_files(["block.h"], '
                'visibility = ["//python_shim:__pkg__"])'),
            "python_shim/BUILD.bazel": self._build(
                "python_shim",
                'package(default_visibility = ["//python_shim:__subpackages__"]'
                ')',
                'cc_library(name = "core", deps = ["//allocator", '
                '"//allocator:allocator", "//allocator:values"])',
                'cc_device_test(name = "t", data = ["//allocator:block.h"])')
            ["python_shim/BUILD.bazel"]
            .replace('"testing/door.py"', '"//python_shim/testing:door.py"'),
            **self._build(
                "tests/simulator/cudasim",
                'cc_library(name = "calls", deps = ["//allocator:sources"], '
                'visibility = ["//visibility:public"])'),
            "python_shim/testing/BUILD.bazel": f"# {SPDX}"
            "package(default_testonly = True)\n"
            'cc_library(name = "l", deps = ["//tests/simulator/cudasim:sim"])\n',
        }), {})


if __name__ == "__main__":
    unittest.main()
