# SPDX-License-Identifier: Apache-2.0
"""Each rule sees its violation planted in a small tree, and nothing else."""

import os
import tempfile
import unittest

from tests.tidy import rules
from tests.tidy.tree import Tree

_SPDX = "SPDX-License-Identifier: Apache-2.0\n"
_CLEAN = {
    "WORKSPACE": f"# {_SPDX}",
    "dev": f"#!/bin/sh\n# {_SPDX}",
    "bazel/BUILD.bazel": f"# {_SPDX}",
    "bazel/cc.bzl": f"# {_SPDX}",
    "DESIGN.md": "## Other\n\n3. Not one.\n\n"
    "## Residency rules\n\n1. *Order.* As\nsaid.\n2. *Pins.* Short.\n\n"
    "## Lock order\n\n| rank | who |\n|---|---|\n| kFirst | a |\n"
    "| kSecond | b |\n\n## More\n\n| kThird | of another list |\n",
    "allocator/base/README.md": "",
    "allocator/base/BUILD.bazel": f"# {_SPDX}"
    'cc_library(name = "lock_ranks", hdrs = ["lock_ranks.h"])\n',
    "allocator/base/lock_ranks.h": f"// {_SPDX}enum class LockRank : int {{\n"
    "  kFirst = 10,  // before kOther = 15\n  kSecond = 20,\n};\n",
    "allocator/README.md": "Rules 1–2, design ru" "les 1 and 2.\n"
    "A ru" "le takes 7 lines; 9 ru" "les.\n",
    "allocator/BUILD.bazel": f"# {_SPDX}"
    'load("//bazel:cc.bzl", "cc_library", "cc_test")\n'
    'cc_library(name = "block", srcs = ["block.cc"], hdrs = ["block.h"])\n'
    '[cc_test(name = n, srcs = [n + ".cc"]) for n in ["block_test"]]\n',
    "allocator/block.h": f"// {_SPDX}",
    "allocator/block.cc": f'// {_SPDX}#include "allocator/block.h"\n'
    "// std::mutex is only a word here.\n"
    'const char* kText = "std::mutex";\n',
    "allocator/block_test.cc": f"// {_SPDX}"
    '#include "tests/cudasim/control.h"\nstd::mutex m;\n',
    "python_shim/README.md": "",
    "python_shim/BUILD.bazel": f"# {_SPDX}"
    'py_library(name = "door", srcs = ["simulate.py", "door_test.py"],\n'
    'data = ["tests/door.py", "testing/door.py"])\n',
    "python_shim/simulate.py": f"# {_SPDX}INSTALL = 'stratalloc-cudasim'\n",
    "python_shim/door_test.py": f"# {_SPDX}import stratalloc_cudasim\n",
    "python_shim/tests/door.py": f"# {_SPDX}# CUDASIM_MODE\n",
    "python_shim/testing/door.py": f"# {_SPDX}# libcudasim\n",
    "allocator/cuda/README.md": "",
    "allocator/cuda/BUILD.bazel": f"# {_SPDX}"
    'cc_library(name = "api", hdrs = glob(["*.h"]))\n',
    "allocator/cuda/cuda_api.h": f"// {_SPDX}#include <cuda.h>\n",
    "tests/README.md": "",
    "tests/cudasim/README.md": "",
    "tests/cudasim/BUILD.bazel": f"# {_SPDX}"
    'cc_library(name = "sim", hdrs = ["control.h"] + EXTRA)\n',
    "tests/cudasim/control.h": f"// {_SPDX}#include <ATen/ATen.h>\n"
    "#include <cuda_runtime_api.h>\n",
    ".venv/bad.cc": "FIX" + "ME\n",
}


class RulesTest(unittest.TestCase):
    def _complaints(self, planted, removed=()):
        files = {**_CLEAN, **planted}
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                if path in removed:
                    continue
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as stream:
                    stream.write(text)
            tree = Tree(root)
            return {
                rule.__name__: found
                for rule in rules.ALL
                if (found := list(rule(tree)))
            }

    def _expect(self, rule, start, planted, removed=()):
        found = self._complaints(planted, removed)
        self.assertEqual(list(found), [rule], found)
        self.assertEqual(len(found[rule]), 1, found)
        self.assertTrue(found[rule][0].startswith(start), found)

    def _header(self, line):
        return f"// {_SPDX}{line}\n"

    def test_a_clean_tree_has_no_complaints(self):
        self.assertEqual(self._complaints({}), {})

    def test_upward_include(self):
        self._expect(
            "upward_includes",
            "allocator/block.h:2: allocator includes tiering/tier.h",
            {"allocator/block.h": self._header('#include "tiering/tier.h"')},
        )

    def test_upward_include_between_rooms_of_one_folder(self):
        self._expect(
            "upward_includes",
            "allocator/cuda/cuda_api.h:2: allocator/cuda includes "
            "allocator/block.h",
            {"allocator/cuda/cuda_api.h":
             self._header('#  include "allocator/block.h"')},
        )

    def _folder(self, folder, header, line):
        """A folder with one header, of which `line` is all."""
        return {
            f"{folder}/BUILD.bazel": f"# {_SPDX}"
            'load("//bazel:cc.bzl", "cc_folder")\ncc_folder(name = "all")\n',
            f"{folder}/{header}": self._header(line),
        }

    def test_upward_include_between_layers_of_allocator(self):
        self._expect(
            "upward_layers",
            "allocator/heap/pool.h:2: the layer heap of allocator includes "
            "allocator/ladder/rung.h",
            self._folder("allocator/heap", "pool.h",
                         '#include "allocator/ladder/rung.h"'),
        )

    def test_upward_include_between_layers_of_tiering(self):
        self._expect(
            "upward_layers",
            "tiering/io/ring.h:2: the layer io of tiering includes "
            "tiering/engine/engine.h",
            {**self._folder("tiering/io", "ring.h",
                            '#include "tiering/engine/engine.h"'),
             "tiering/README.md": ""},
        )

    def test_folder_without_a_place_among_the_layers(self):
        self._expect(
            "upward_layers",
            "allocator/attic/old.h: allocator/attic is no layer of allocator",
            self._folder("allocator/attic", "old.h", ""),
        )

    def test_code_that_includes_the_simulator(self):
        self._expect(
            "upward_includes",
            "allocator/block.h:2: allocator includes tests/cudasim/",
            {"allocator/block.h":
             self._header('#include "tests/cudasim/control.h"')},
        )

    def test_a_test_that_includes_upward(self):
        self._expect(
            "upward_includes",
            "allocator/block_test.cc:2: allocator includes python_shim/",
            {"allocator/block_test.cc":
             self._header('#include "python_shim/c_api.h"')},
        )

    def _build(self, room, *lines):
        """A room's BUILD file with more in it."""
        path = room + "/BUILD.bazel"
        return {path: _CLEAN[path] + "".join(line + "\n" for line in lines)}

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
        for label in ("//python_shim", "//tests/cudasim:sim"):
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
                'deps = ["//tests/cudasim:sim"])',
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
                "tests/cudasim",
                'cc_library(name = "calls", deps = ["//allocator:sources"], '
                'visibility = ["//visibility:public"])'),
            "python_shim/testing/BUILD.bazel": f"# {_SPDX}"
            "package(default_testonly = True)\n"
            'cc_library(name = "l", deps = ["//tests/cudasim:sim"])\n',
        }), {})

    def test_cuda_headers(self):
        for header in ("cuda_runtime_api.h", "cuda.h", "cub/cub.cuh",
                       "driver_types.h", "cuda/std/atomic"):
            with self.subTest(header):
                self._expect(
                    "cuda_headers",
                    f"allocator/block.h:2: CUDA header {header}",
                    {"allocator/block.h":
                     self._header(f"#include <{header}>")},
                )

    def test_torch_headers(self):
        for header in ("ATen/ATen.h", "c10/cuda/CUDAStream.h",
                       "torch/library.h"):
            with self.subTest(header):
                self._expect(
                    "torch_headers",
                    f"allocator/block.h:2: torch header {header}",
                    {"allocator/block.h":
                     self._header(f"#include <{header}>")},
                )

    def test_simulator_name(self):
        for path, text, name in (
            ("allocator/block.cc", "// libcudasim_torch.so", "libcudasim_torch"),
            ("allocator/block.h", 'Find("cudasim_calls");', "cudasim_calls"),
            ("python_shim/simulate.py", "import stratalloc_cudasim",
             "stratalloc_cudasim"),
            ("python_shim/simulate.py", 'environ["CUDASIM_MODE"]',
             "CUDASIM_MODE"),
        ):
            with self.subTest(text):
                mark = "# " if path.endswith(".py") else "// "
                self._expect(
                    "simulator_names",
                    f"{path}:2: {name}; the simulated device registers itself",
                    {path: f"{mark}{_SPDX}{text}\n"},
                )

    def test_raw_mutex(self):
        for kind in ("std::mutex", "std::shared_mutex", "pthread_mutex_t",
                     "std::recursive_timed_mutex"):
            with self.subTest(kind):
                self._expect(
                    "raw_mutexes",
                    f"allocator/block.h:2: {kind}",
                    {"allocator/block.h": self._header(f"{kind} m;")},
                )

    def test_handle_entry(self):
        for way in ("HandleEntry", "handle.entry()", "region->entries"):
            with self.subTest(way):
                self._expect(
                    "handle_entries",
                    "tiering/guard.h:2: ",
                    {
                        "tiering/README.md": "",
                        "tiering/BUILD.bazel": f"# {_SPDX}"
                        'cc_library(name = "all", hdrs = glob(["*.h"]))\n',
                        "tiering/guard.h": self._header(f"{way};"),
                        "allocator/block.h": self._header(f"{way};"),
                    },
                )

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
            {"allocator/pool.cc": f"// {_SPDX}"},
        )

    def test_glob_does_not_reach_into_another_package(self):
        self._expect(
            "orphans",
            "allocator/cuda/x.cc: in no BUILD target",
            {
                "allocator/BUILD.bazel": _CLEAN["allocator/BUILD.bazel"]
                + 'filegroup(name = "all", srcs = glob(["**"]))\n',
                "allocator/cuda/x.cc": f"// {_SPDX}",
            },
        )

    def test_bzl_that_nothing_loads(self):
        self._expect(
            "orphans",
            "bazel/dead.bzl: in no BUILD target",
            {"bazel/dead.bzl": f"# {_SPDX}"},
        )

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
            return {path: f"# {_SPDX}def f():\n{said}"
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
                     "tests/cudasim"):
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

    def test_unknown_rule(self):
        # In two parts, for the rule itself reads this file.
        for text, line, number in (
            ("design ru" "le 3", 2, 3),
            ("Ru" "le 12: nothing", 2, 12),
            ("ru" "les 1, 2 and 3", 2, 3),
            ("ru" "les 1, 2, and 3", 2, 3),
            ("ru" "les 1–3", 2, 3),
            ("ru" "les 4 and 1", 2, 4),
            ("the design ru" "le\n//   3 says", 2, 3),
            ("ru" "les 1 and\n// 3", 2, 3),
            ("\n\n// ru" "le 3", 4, 3),
        ):
            with self.subTest(text):
                self._expect(
                    "unknown_rules",
                    f"allocator/block.h:{line}: rule {number}; DESIGN.md",
                    {"allocator/block.h": self._header(f"// {text}")},
                )

    def test_unknown_rule_in_other_files(self):
        for path, mark in (("allocator/README.md", ""), ("dev", "# "),
                           ("allocator/BUILD.bazel", "# "),
                           ("bazel/cc.bzl", "# ")):
            with self.subTest(path):
                text = _CLEAN[path] + f"\n{mark}See ru" "le 3.\n"
                self._expect(
                    "unknown_rules",
                    f"{path}:{text.count(chr(10))}: rule 3",
                    {path: text},
                )

    def test_unknown_names_in_a_readme(self):
        for name in ("`Block::Gone`", "`BlockGone`", "`BlockGone()`",
                     "`gone_`", "`gone.cc`", "`allocator/gone.h`"):
            with self.subTest(name):
                self._expect(
                    "unknown_names",
                    f"allocator/README.md:4: {name} is nowhere",
                    {"allocator/README.md": _CLEAN["allocator/README.md"]
                     + f"\nSee {name}.\n"},
                )

    def test_unknown_names_in_a_comment(self):
        code = "struct Block { int left_; };\nclass API(x) Pool {};\n"
        for text, name in (("see gone.cc", "gone.cc"),
                           ("as GoneLocked does", "GoneLocked"),
                           ("Block::Gone", "Block::Gone"),
                           ("Pool::Gone", "Pool::Gone")):
            with self.subTest(text):
                self._expect(
                    "unknown_names",
                    f"allocator/block.h:4: {name} is nowhere",
                    {"allocator/block.h": self._header(f"{code}// {text}")},
                )

    def test_names_that_are_there_or_not_ours(self):
        self.assertEqual(self._complaints({
            "allocator/README.md": _CLEAN["allocator/README.md"]
            + "\n`block.cc`, `kText`, `LockRank::kFirst`, `Word`, `left_`,\n"
            "`a sentence of Gone::Gone`.\n```\n`Gone::Gone`\n```\n",
            "tests/README.md": "`Gone::Gone`\n",
            "allocator/block.h": self._header(
                "struct Block { int left_; };\n"
                "// Dispatcher::Gone, <gone.h>, block.cc, Block::left_"),
        }), {})

    def test_import_cycles(self):
        package = "python_shim/door/"
        clean = {
            "python_shim/BUILD.bazel": _CLEAN["python_shim/BUILD.bazel"]
            + 'py_library(name = "p", srcs = glob(["door/*.py"]))\n',
            package + "__init__.py": f"# {_SPDX}from door import a\n",
            package + "a.py": f"# {_SPDX}import os\nfrom door import b\n",
            package + "b.py": f"# {_SPDX}from typing import TYPE_CHECKING\n"
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
                    {**clean, package + "b.py": f"# {_SPDX}{back}"},
                )

    def test_lock_order(self):
        design = _CLEAN["DESIGN.md"]
        first, second = "| kFirst | a |\n", "| kSecond | b |\n"
        for text, start in (
            (design.replace(second, second + "| kGone | c |\n"),
             "DESIGN.md:17: kGone; allocator/base/lock_ranks.h"),
            (design.replace(second, ""), "DESIGN.md: no row for kSecond"),
            (design.replace(first + second, second + first),
             "DESIGN.md: the rows under"),
            (design.replace(second, second + second),
             "DESIGN.md: a rank twice"),
        ):
            with self.subTest(start):
                self._expect("lock_order", start, {"DESIGN.md": text})

    def test_handle_states(self):
        header = "allocator/memory/handle_table.h"
        table = "allocator/RESIDENCY.md"
        first = "| kAway (or not) | → kHere, in the end |\n"
        files = {
            "allocator/memory/BUILD.bazel": f"# {_SPDX}"
            'cc_library(name = "table", hdrs = ["handle_table.h"])\n',
            header: self._header("enum class HandleState : int {\n"
                                 "  kHere = 0,  // not kThere = 1\n"
                                 "  kAway = 2,\n};\nenum class X { kX = 1 };"),
            table: "kGone\n\n| state | event |\n|---|---|\n" + first
            + "| kHere | – |\n",
        }
        self.assertEqual(self._complaints(files), {})
        for text, start in (
            (files[table].replace(first, ""), ": 0 rows for kAway"),
            (files[table] + first, ": 2 rows for kAway"),
            (files[table].replace("→ kHere", "→ kGone"), ":5: kGone; "),
            (files[table] + "| kGone | – |\n", ":7: kGone; "),
        ):
            with self.subTest(text):
                self._expect("handle_states", table + start,
                             {**files, table: text})
        self._expect("handle_states", f"{table}: 0 rows for kMoving",
                     {**files, header: files[header].replace(
                         "};\nenum", "  kMoving = 3,\n};\nenum")})

    def test_a_rank_of_which_the_design_says_nothing(self):
        path = "allocator/base/lock_ranks.h"
        self._expect(
            "lock_order",
            "DESIGN.md: no row for kThird",
            {path: _CLEAN[path].replace("};", "  kThird = 30,\n};")},
        )

    def test_a_design_without_rules_has_none_to_cite(self):
        rules_of = "## Residency rules"
        found = self._complaints({
            "DESIGN.md": _CLEAN["DESIGN.md"].replace(rules_of, "## Not them")})
        self.assertEqual(list(found), ["unknown_rules"], found)
        self.assertEqual(len(found["unknown_rules"]), 4, found)


if __name__ == "__main__":
    unittest.main()
