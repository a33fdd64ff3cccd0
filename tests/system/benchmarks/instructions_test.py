# SPDX-License-Identifier: Apache-2.0
"""A slower malloc or free is a diff of instructions.json."""

import json
import os
import unittest

from tests.system.benchmarks import instructions

# Another compiler orders and inlines differently; that is no regression.
_SAME_COMPILER, _OTHER_COMPILER = 1.03, 1.25

_RENEW = ("if that is meant: python3 tests/system/benchmarks/instructions.py "
          "$(bazel info bazel-bin)/tests/system/benchmarks/hot_path --write, and say "
          "in the commit what the instructions buy")


class InstructionsTest(unittest.TestCase):

    def test_no_call_executes_more_than_the_table_says(self):
        with open(instructions.TABLE, encoding="utf-8") as table:
            recorded = json.load(table)
        allowed = (_SAME_COMPILER
                   if recorded["compiler"] == instructions.compiler()
                   else _OTHER_COMPILER)
        counts = instructions.measure(os.environ["HOT_PATH"])
        self.assertEqual(sorted(counts), sorted(recorded["instructions"]))
        slower = {
            name: f"{was} -> {counts[name]}"
            for name, was in recorded["instructions"].items()
            if counts[name] > was * allowed + 1
        }
        self.assertEqual(slower, {}, _RENEW)

    def test_a_size_costs_what_every_size_costs(self):
        # Out of a bin nothing depends on the size: no loop over handles.
        counts = instructions.measure(os.environ["HOT_PATH"])
        for call in ("malloc", "free"):
            costs = [counts[f"{call} {size}"]
                     for size in ("512B", "64KiB", "4MiB", "64MiB")]
            self.assertLess(max(costs) - min(costs), 12, costs)


if __name__ == "__main__":
    unittest.main()
