# SPDX-License-Identifier: Apache-2.0
"""A small tree without complaints, and a test case that plants files in it."""

import os
import tempfile
import unittest

from tests.repository.tidy import rules
from tests.repository.tidy.tree import Tree

SPDX = "SPDX-License-Identifier: Apache-2.0\n"
CLEAN = {
    "WORKSPACE": f"# {SPDX}",
    "dev": f"#!/bin/sh\n# {SPDX}",
    "bazel/BUILD.bazel": f"# {SPDX}",
    "bazel/cc.bzl": f"# {SPDX}",
    "DESIGN.md": "## Other\n\n3. Not one.\n\n"
    "## Residency rules\n\n1. *Order.* As\nsaid.\n2. *Pins.* Short.\n\n"
    "## Lock order\n\n| rank | guards |\n|---|---|\n| kFirst | a |\n"
    "| kSecond | b |\n\n## More\n\n| kThird | of another list |\n",
    "allocator/base/README.md": "",
    "allocator/base/BUILD.bazel": f"# {SPDX}"
    'cc_library(name = "lock_ranks", hdrs = ["lock_ranks.h"])\n',
    "allocator/base/lock_ranks.h": f"// {SPDX}enum class LockRank : int {{\n"
    "  kFirst = 10,  // before kOther = 15\n  kSecond = 20,\n};\n",
    "allocator/README.md": "Rules 1–2, design ru" "les 1 and 2.\n"
    "A ru" "le takes 7 lines; 9 ru" "les.\n",
    "allocator/BUILD.bazel": f"# {SPDX}"
    'load("//bazel:cc.bzl", "cc_library", "cc_test")\n'
    'cc_library(name = "block", srcs = ["block.cc"], hdrs = ["block.h"])\n'
    '[cc_test(name = n, srcs = [n + ".cc"]) for n in ["block_test"]]\n',
    "allocator/block.h": f"// {SPDX}",
    "allocator/block.cc": f'// {SPDX}#include "allocator/block.h"\n'
    "// std::mutex is only a word here.\n"
    'const char* kText = "std::mutex";\n',
    "allocator/block_test.cc": f"// {SPDX}"
    '#include "tests/simulator/cudasim/control.h"\nstd::mutex m;\n',
    "python_shim/README.md": "",
    "python_shim/BUILD.bazel": f"# {SPDX}"
    'py_library(name = "door", srcs = ["simulate.py", "door_test.py"],\n'
    'data = ["tests/door.py", "testing/door.py"])\n',
    "python_shim/simulate.py": f"# {SPDX}INSTALL = 'stratalloc-cudasim'\n",
    "python_shim/door_test.py": f"# {SPDX}import stratalloc_cudasim\n",
    "python_shim/tests/door.py": f"# {SPDX}# CUDASIM_MODE\n",
    "python_shim/testing/door.py": f"# {SPDX}# libcudasim\n",
    "allocator/cuda/README.md": "",
    "allocator/cuda/BUILD.bazel": f"# {SPDX}"
    'cc_library(name = "api", hdrs = glob(["*.h"]))\n',
    "allocator/cuda/cuda_api.h": f"// {SPDX}#include <cuda.h>\n",
    "tests/README.md": "",
    "tests/simulator/README.md": "",
    "tests/simulator/cudasim/README.md": "",
    "tests/simulator/cudasim/BUILD.bazel": f"# {SPDX}"
    'cc_library(name = "sim", hdrs = ["control.h"] + EXTRA)\n',
    "tests/simulator/cudasim/control.h": f"// {SPDX}#include <ATen/ATen.h>\n"
    "#include <cuda_runtime_api.h>\n",
    ".venv/bad.cc": "FIX" + "ME\n",
}


class RuleCase(unittest.TestCase):
    """One test of a rule: plants files and reads the complaints."""

    def _complaints(self, planted, removed=()):
        files = {**CLEAN, **planted}
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
        return f"// {SPDX}{line}\n"
