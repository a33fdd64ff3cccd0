# SPDX-License-Identifier: Apache-2.0
"""The table of suites and minors, over reports made by hand."""

import contextlib
import io
import json
import os
import re
import tempfile
import unittest

from tests.system.minors import table


def _report(**failed):
    """Every suite passes two cases, but those named by the end of a label."""
    targets = []
    for target in table.SUITES:
        count = failed.get(target.split(":")[1], 0)
        targets.append({"target": target, "passed": 2, "failed": count,
                        "skipped": 1, "seconds": 1.0,
                        "reasons": {"no | such thing": 1}})
    return {"passed": 2 * len(targets), "skipped": len(targets),
            "failed": sum(one["failed"] for one in targets),
            "targets": targets}


class TableTest(unittest.TestCase):

    def _main(self, reports):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for minor, report in reports.items():
                paths.append(os.path.join(folder, minor + ".json"))
                with open(paths[-1], "w", encoding="utf-8") as stream:
                    json.dump(report, stream)
            out = os.path.join(folder, "out.md")
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                code = table.main([out, *paths])
            with open(out, encoding="utf-8") as stream:
                text = stream.read()
        self.assertEqual(shown.getvalue(), text)
        return code, text

    def test_passing_minors_stand_in_order_and_exit_code_is_0(self):
        code, text = self._main({"2.11": _report(), "2.9": _report()})
        self.assertEqual(code, 0)
        self.assertIn("| suite | target | 2.9 | 2.11 |", text)
        self.assertIn("`//tests/system/e2e:e2e_test` | 2, 1 skipped | "
                      "2, 1 skipped |", text)

    def test_reason_of_a_skip_is_listed_with_its_minors(self):
        _, text = self._main({"2.11": _report(), "2.9": _report()})
        self.assertIn("- `//tests/system/e2e:e2e_test`: no | such thing "
                      "(1 under 2.9, 1 under 2.11)\n", text)

    def test_failed_case_is_shown_and_exit_code_is_1(self):
        code, text = self._main({"2.9": _report(e2e_test=3)})
        self.assertEqual(code, 1)
        self.assertIn("| 2, 3 failed, 1 skipped |", text)

    def test_target_without_a_result_is_a_gap_and_exit_code_is_1(self):
        report = _report()
        del report["targets"][0]
        code, text = self._main({"2.9": report})
        self.assertEqual(code, 1)
        self.assertIn("`//tests/system/e2e:e2e_test` | - |", text)

    def test_table_names_the_targets_that_the_suite_runs(self):
        path = os.path.join(os.path.dirname(table.__file__), "BUILD.bazel")
        with open(path, encoding="utf-8") as stream:
            suite = stream.read().split("test_suite(")[1].split(")")[0]
        labels = re.findall(r'"(//[^"]+:[^"]+)"', suite)
        self.assertEqual(sorted(labels), sorted(table.SUITES))


if __name__ == "__main__":
    unittest.main()
