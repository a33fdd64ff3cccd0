# SPDX-License-Identifier: Apache-2.0
"""Each kind of weak comparison is found where it is planted, and only there."""

import os
import tempfile
import unittest

from tests.repository.tidy.weak_comparisons import test_files
from tests.repository.tidy.weak_comparisons import weak_comparisons

_HEAD = "def test_it(model):\n    loss = model().sum()\n    "


class WeakComparisonsTest(unittest.TestCase):
    def _kinds(self, body, everything=False):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "test_it.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(_HEAD + body + "\n")
            return [kind for _, _, kind, _ in
                    weak_comparisons(path, everything)]

    def test_each_kind_is_found(self):
        for kind, body in (
            ("inequality", "assert losses[0] != losses[1]"),
            ("inequality", "assert not torch.equal(loss, other)"),
            ("inequality", "assert not loss > 1.0"),
            ("not-none", "assert loss is not None"),
            ("length", "assert len(losses) == 5"),
            ("length", "assert loss.shape == x.shape"),
            ("largest", "assert max(differences) < 1e-5"),
            ("tolerance", "if abs(loss - x) > 1e-5: raise ValueError"),
            ("equal-nan", "np.testing.assert_allclose(loss, x)"),
            ("bits", "assert digest(x) == digest(y)"),
        ):
            with self.subTest(body):
                self.assertEqual(self._kinds(body), [kind])

    def test_comparison_by_value_beside_an_inequality_is_enough(self):
        body = "assert a != b; assert torch.equal(a, c)"
        self.assertEqual(self._kinds(body), [])
        self.assertEqual(self._kinds(body, True), ["inequality"])

    def test_tolerance_is_found_beside_a_comparison_by_value(self):
        self.assertEqual(self._kinds(
            "assert torch.equal(a, c); assert max(gaps) < 1"), ["largest"])

    def test_function_without_tensors_is_not_searched(self):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "names_test.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write("def test_it():\n    assert names[0] != names[1]\n")
            self.assertEqual(weak_comparisons(path), [])
            self.assertEqual(list(test_files(root)), [path])


if __name__ == "__main__":
    unittest.main()
