# SPDX-License-Identifier: Apache-2.0
"""The repository keeps its own rules: one case per rule, on the real tree."""

import os
import unittest

from tests.repository.tidy import rules
from tests.repository.tidy.tree import Tree


def _root() -> str:
    # Bazel links the declared file back to the checkout, where all others are.
    return os.path.dirname(os.path.realpath("WORKSPACE"))


class TidyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = Tree(_root())

    def test_the_tree_is_the_repository(self):
        for path in ("dev", "tests/repository/tidy/rules.py", "bazel/cc.bzl"):
            self.assertTrue(self.tree.has(path), path)


def _case(rule):
    def test(self):
        complaints = list(rule(self.tree))
        self.assertEqual(complaints, [], "\n" + "\n".join(complaints))

    test.__doc__ = rule.__doc__
    return test


for _rule in rules.ALL:
    setattr(TidyTest, "test_" + _rule.__name__, _case(_rule))


if __name__ == "__main__":
    unittest.main()
