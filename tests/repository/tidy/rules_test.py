# SPDX-License-Identifier: Apache-2.0
"""Each rule sees its violation planted in a small tree, and nothing else."""

import unittest

from tests.repository.tidy.planted_tree import CLEAN, SPDX, RuleCase


class RulesTest(RuleCase):
    def test_a_clean_tree_has_no_complaints(self):
        self.assertEqual(self._complaints({}), {})

    def test_unfinished_mark(self):
        self._expect(
            "unfinished_marks",
            "allocator/README.md:1: FIX" + "ME",
            {"allocator/README.md": "FIX" + "ME: later\n"},
        )

    def test_orphan(self):
        self._expect(
            "orphans",
            "allocator/pool.cc: in no BUILD target",
            {"allocator/pool.cc": f"// {SPDX}"},
        )

    def test_glob_does_not_reach_into_another_package(self):
        self._expect(
            "orphans",
            "allocator/cuda/x.cc: in no BUILD target",
            {
                "allocator/BUILD.bazel": CLEAN["allocator/BUILD.bazel"]
                + 'filegroup(name = "all", srcs = glob(["**"]))\n',
                "allocator/cuda/x.cc": f"// {SPDX}",
            },
        )

    def test_bzl_that_nothing_loads(self):
        self._expect(
            "orphans",
            "bazel/dead.bzl: in no BUILD target",
            {"bazel/dead.bzl": f"# {SPDX}"},
        )

    def test_syntax_that_the_oldest_python_of_wheels_lacks(self):
        module = f"# {SPDX}try:\n    pass\nexcept* OSError:\n    pass\n"
        self._expect(
            "newer_syntax",
            "telemetry/module.py:",
            {
                "telemetry/module.py": module,
                "telemetry/README.md": "",
                "telemetry/BUILD.bazel": "# " + SPDX
                + 'py_library(name = "m", srcs = ["module.py"])\n',
                "tests/module.py": module,
                "tests/BUILD.bazel": "# " + SPDX
                + 'py_library(name = "m", srcs = ["module.py"])\n',
            },
        )

    def test_long_test_without_a_kept_result(self):
        for planted, tag in (
            ('TAGS = ["long", "external"]\n'
             'py_test(name = "hours", tags = TAGS)\n', "external"),
            ('torch_py_test(name = "hours", long = True, '
             'tags = ["no-cache"])\n', "no-cache"),
        ):
            with self.subTest(tag):
                self._expect(
                    "uncached_long_tests",
                    f"tests/simulator/cudasim/BUILD.bazel: hours is long and tagged {tag}",
                    {"tests/simulator/cudasim/BUILD.bazel":
                     CLEAN["tests/simulator/cudasim/BUILD.bazel"] + planted})

    def test_no_licence_line(self):
        for path in ("allocator/block.h", "dev", "WORKSPACE"):
            with self.subTest(path):
                self._expect(
                    "licence_lines", f"{path}:1: no SPDX", {path: "# x\n"}
                )

    def test_long_header(self):
        def header(lines):
            return self._header("\n" * (lines - 2))

        path = "allocator/block.h"
        self.assertEqual(self._complaints({path: header(350)}), {})
        self._expect(
            "long_headers", f"{path}:351: 351 lines, 350 are the most",
            {path: header(351)})

    def test_long_source(self):
        for path, mark in (("allocator/block.cc", "//"),
                           ("allocator/block_test.cc", "//"),
                           ("python_shim/door_test.py", "#"),
                           ("bazel/cc.bzl", "#")):
            def source(lines, mark=mark):
                return f"{mark} {SPDX}" + f"{mark}\n" * (lines - 1)

            with self.subTest(path):
                self.assertEqual(self._complaints({path: source(500)}), {})
                self._expect(
                    "long_sources", f"{path}:501: 501 lines, 500 are the most",
                    {path: source(501)})

    def test_long_function(self):
        signatures = (
            "int F(int a,\n      int b) {",
            "template <class T>\nvoid G(T t) {",
            "A::A(int a)\n    : a_{a}, b_({a, 1}) {",
            "bool A::operator()(const char* s = \"{;\", char c = '}') const {",
            "struct stat H() const {",
        )
        path = "allocator/block.h"
        for signature in signatures:
            folds = signature.count("\n")

            def planted(lines, signature=signature, folds=folds):
                body = "  if (f(1)) {\n  }\n" + "  f();\n" * (
                    lines - folds - 4)
                # Its class is no function, nor is a line of a macro.
                return {path: self._header(
                    "#define M(x) { x\nnamespace n {\nclass A : B<int(char)> "
                    f"{{\n  int c;\n{signature}\n{body}}}\n" + "int f();\n"
                    * 70 + "};\n}")}

            with self.subTest(signature):
                self.assertEqual(self._complaints(planted(60)), {})
                self._expect(
                    "long_functions", f"{path}:6: a function of 61 lines",
                    planted(61))

    def test_an_access_label_is_no_line_of_a_method(self):
        def planted(lines):
            body = "    f();\n" * (lines - 2)
            return {"allocator/block.h": self._header(
                'class CAPABILITY("lock") A {\n public:\n\n  void F() {\n'
                f"{body}  }}\n}};\n")}

        self.assertEqual(self._complaints(planted(60)), {})
        self._expect("long_functions", "allocator/block.h:5: a function of 61",
                     planted(61))

    def test_long_python_function(self):
        path = "python_shim/simulate.py"
        said = '    """Says.\n' + "\n" * 70 + '    """\n'

        def planted(lines, path=path):
            return {path: f"# {SPDX}def f():\n{said}"
                    + "    f()\n" * (lines - 1)}

        self.assertEqual(self._complaints(planted(60)), {})
        self._expect("long_functions", f"{path}:74: a function of 61 lines",
                     planted(61))
        # Tests may have theirs.
        for test in ("python_shim/door_test.py", "python_shim/tests/door.py",
                     "python_shim/testing/door.py"):
            with self.subTest(test):
                self.assertEqual(self._complaints(planted(61, test)), {})

    def test_room_without_readme(self):
        for room in ("allocator", "allocator/cuda", "tests",
                     "tests/simulator", "tests/simulator/cudasim"):
            with self.subTest(room):
                self._expect(
                    "missing_readmes",
                    f"{room}: no README.md",
                    {},
                    removed=(room + "/README.md",),
                )

    def test_wide_readme(self):
        wide = "w" * 101 + "\n"
        self._expect(
            "wide_readmes",
            "allocator/README.md:3: 101 columns",
            {"allocator/README.md": f"| {wide}\n{wide}```\n{wide}```\n"},
        )


if __name__ == "__main__":
    unittest.main()
