# SPDX-License-Identifier: Apache-2.0
"""What is counted: cases, crashes, targets that never built; never too kindly."""

import contextlib
import io
import json
import os
import tempfile
import unittest

from tests.repository.report import report

_GTEST = """<testsuites>
<testcase name="A" status="run" result="completed" classname="S"/>
<testcase name="B" status="run" result="completed" classname="S">
  <failure message="no"/></testcase>
<testcase name="C" status="run" result="skipped" classname="S">
  <skipped message="no
  card"/></testcase>
<testcase name="D" status="notrun" result="suppressed" classname="S"/>
</testsuites>"""
_PASSING = '<testsuites><testcase name="A" classname="S"/></testsuites>'


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.events = []

    def _add(self, label, status, xml=None, attempt=1, shard=1, took=1500,
             cached=False):
        self.events.append({
            "id": {"targetConfigured": {"label": label}},
            "configured": {"targetKind": "cc_test rule"},
        })
        self.events.append({
            "id": {"targetCompleted": {"label": label}},
            "completed": {"success": True},
        })
        outputs = []
        if xml is not None:
            path = os.path.join(self.folder, f"{len(self.events)}.xml")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(xml)
            outputs = [{"name": "test.xml", "uri": "file://" + path}]
        self.events.append({
            "id": {"testResult": {
                "label": label, "run": 1, "shard": shard, "attempt": attempt,
            }},
            "testResult": {
                "testActionOutput": outputs,
                "testAttemptDurationMillis": str(took),
                "cachedLocally": cached,
            },
        })
        self.events.append({
            "id": {"testSummary": {"label": label}},
            "testSummary": {"overallStatus": status},
        })

    def _interrupt(self, label):
        self.events.append({
            "id": {"targetConfigured": {"label": label}},
            "configured": {"targetKind": "cc_test rule"},
        })
        for kind in ("targetCompleted", "testResult", "testSummary"):
            self.events.append({
                "id": {kind: {"label": label}},
                "aborted": {"reason": "USER_INTERRUPTED"},
            })

    def _run(self, **options):
        path = os.path.join(self.folder, "events.json")
        with open(path, "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(e) + "\n" for e in self.events)
        out = os.path.join(self.folder, "out.json")
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            code = report.finish(path, **{"seconds": 61.4, **options},
                                 out=out)
        self.shown = shown.getvalue().splitlines()
        with open(out, encoding="utf-8") as stream:
            return code, json.load(stream)

    def test_cases_are_counted_one_by_one(self):
        self._add("//tests/simulator/cudasim/inner:t", "FAILED", _GTEST)
        code, summary = self._run()
        self.assertEqual(code, 1)
        self.assertEqual(summary["rooms"], {"tests/simulator/cudasim": {
            "targets": 1, "passed": 1, "failed": 1, "skipped": 2,
            "seconds": 1.5,
        }})
        self.assertEqual(
            summary["failures"], ["//tests/simulator/cudasim/inner:t: S.B"]
        )
        self.assertEqual(summary["targets"], [{
            "target": "//tests/simulator/cudasim/inner:t", "passed": 1,
            "failed": 1, "skipped": 2, "reasons": {"": 1, "no card": 1},
            "seconds": 1.5,
        }])

    def test_all_passed_is_success(self):
        self._add("//accounting:t", "PASSED", _PASSING)
        code, summary = self._run()
        self.assertEqual((code, summary["passed"]), (0, 1))

    def test_a_crash_after_the_last_case_is_a_failure(self):
        self._add("//accounting:t", "FAILED", _PASSING)
        code, summary = self._run()
        self.assertEqual((code, summary["failed"]), (1, 1))

    def test_a_timeout_without_xml_is_a_failure(self):
        self._add("//accounting:t", "TIMEOUT")
        code, summary = self._run()
        self.assertEqual(code, 1)
        self.assertEqual(summary["failures"], ["//accounting:t: timeout"])

    def test_a_target_that_never_built_is_a_failure(self):
        self.events.append({
            "id": {"targetCompleted": {"label": "//accounting:t"}},
            "completed": {},
        })
        code, summary = self._run()
        self.assertEqual(code, 1)
        self.assertEqual(
            summary["failures"], ["//accounting:t: failed to build"]
        )

    def test_a_target_for_another_machine_is_left_out(self):
        self._add("//accounting:t", "PASSED", _PASSING)
        self.events.append({
            "id": {"targetConfigured": {"label": "//python_shim:t"}},
            "configured": {"targetKind": "sh_test rule"},
        })
        self.events.append({
            "id": {"targetCompleted": {"label": "//python_shim:t"}},
            "aborted": {"reason": "SKIPPED"},
        })
        code, summary = self._run()
        self.assertEqual((code, summary["failed"]), (0, 0))

    def test_a_second_attempt_counts_once(self):
        self._add("//accounting:t", "FLAKY", _GTEST)
        self._add("//accounting:t", "FLAKY", _PASSING, attempt=2)
        _, summary = self._run()
        self.assertEqual((summary["passed"], summary["failed"]), (1, 0))

    def test_the_slowest_are_named(self):
        for number in range(12):
            self._add(f"//accounting:t{number}", "PASSED", _PASSING,
                      took=1000 * (number % 3) + number)
        _, summary = self._run()
        self.assertEqual(
            [row["target"][-3:].strip(":t") for row in summary["slowest"]],
            ["11", "8", "5", "2", "10", "7", "4", "1", "9", "6"])
        self.assertEqual(summary["slowest"][0]["seconds"], 2.0)

    def test_the_seconds_of_all_shards_are_a_targets(self):
        for shard, took in ((1, 2000), (2, 500), (3, 250)):
            self._add("//accounting:t", "PASSED", _PASSING, shard=shard,
                      took=took)
        _, summary = self._run()
        self.assertEqual(summary["slowest"],
                         [{"target": "//accounting:t", "seconds": 2.8}])
        self.assertEqual(summary["rooms"]["accounting"]["seconds"], 2.8)

    def test_bazel_failing_for_its_own_reasons_is_a_failure(self):
        self._add("//accounting:t", "PASSED", _PASSING)
        code, summary = self._run(bazel_status=1)
        self.assertEqual((code, summary["failed"]), (1, 1))

    def test_nothing_run_is_not_success(self):
        self.assertEqual(self._run()[0], 1)

    def test_the_last_line(self):
        self._add("//accounting:t", "PASSED", _PASSING)
        self._run()
        self.assertEqual(self.shown[-1], "1 passed, 0 failed")

    def test_last_line_of_long_run_has_seconds_and_resumed_targets(self):
        self._add("//accounting:t", "PASSED", _PASSING)
        self._add("//accounting:before", "PASSED", _PASSING, cached=True)
        code, summary = self._run(long=True)
        self.assertEqual(
            self.shown[-1], "2 passed, 0 failed, 61 s, 1 targets resumed")
        self.assertEqual((code, summary["resumed"]), (0, 1))

    def test_target_with_one_shard_that_ran_is_not_resumed(self):
        self._add("//accounting:t", "PASSED", _PASSING, shard=1)
        self._add("//accounting:t", "PASSED", _PASSING, shard=2, cached=True)
        self.assertEqual(self._run(long=True)[1]["resumed"], 0)

    def test_interrupted_run_fails_once_and_counts_what_ran(self):
        self._add("//accounting:t", "PASSED", _PASSING)
        for label in ("//accounting:a", "//accounting:b"):
            self._interrupt(label)
        code, summary = self._run(bazel_status=8)
        self.assertEqual(code, 1)
        self.assertEqual(summary["failures"], [
            "bazel: interrupted, 2 targets without a result"])
        self.assertEqual(self.shown[-1], "1 passed, 1 failed")

    def test_what_is_read(self):
        """All of it: what is in no line, nobody sees."""
        self._add("//accounting:quick", "PASSED", _PASSING, took=80)
        self._add("//tiering/engine:slow", "FAILED", _GTEST, took=12340)
        self._run()
        self.assertEqual(self.shown, [
            "",
            "room            targets   passed   failed  skipped  seconds",
            "accounting            1        1        0        0      0.1",
            "tiering/engine        1        1        1        2     12.3",
            "",
            "failed:",
            "  //tiering/engine:slow: S.B",
            "",
            "the slowest targets, seconds",
            "    12.3  //tiering/engine:slow",
            "     0.1  //accounting:quick",
            "",
            "61 s in all",
            "2 passed, 1 failed",
        ])


if __name__ == "__main__":
    unittest.main()
