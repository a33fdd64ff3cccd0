# SPDX-License-Identifier: Apache-2.0
"""Lines of progress from planted events and output of Bazel."""

import unittest

from tests.repository.report import progress


def _configured(label, kind="py_test rule", tags=()):
    return {"id": {"targetConfigured": {"label": label}},
            "configured": {"targetKind": kind, "tag": list(tags)}}


def _result(label, seconds, cached=False):
    return {"id": {"testResult": {"label": label}},
            "testResult": {"testAttemptDurationMillis": str(seconds * 1000),
                           "cachedLocally": cached}}


def _summary(label, status="PASSED"):
    return {"id": {"testSummary": {"label": label}},
            "testSummary": {"overallStatus": status}}


def _completed(label, **more):
    return {"id": {"targetCompleted": {"label": label}}, **more}


class ProgressTest(unittest.TestCase):
    def _state(self, *events, seconds=None, cores=2):
        state = progress.Progress(seconds or {}, cores)
        for event in events:
            state.event(event)
        return state

    def test_line_before_the_first_event_names_the_stage(self):
        state = self._state()
        self.assertEqual(state.line(3), "0:03  starting Bazel")
        state.output("Analyzing: 12 targets (3 packages loaded)\n", 5)
        self.assertEqual(state.line(61),
                         "1:01  Analyzing: 12 targets (3 packages loaded)")

    def test_messages_of_bazel_are_no_progress(self):
        state = self._state()
        for line in ("ERROR: allocator/BUILD.bazel:3:1: failed\n",
                     "FAIL: //a:b (see /test.log)\n", "    indented\n"):
            self.assertFalse(state.output(line, 1))

    def test_further_lines_of_progress_are_progress(self):
        state = self._state()
        self.assertTrue(state.output("[1 / 2] Compiling a.cc\n", 1))
        self.assertTrue(state.output("    Compiling b.cc; 3s local\n", 1))
        self.assertFalse(state.output("FAIL: //a:b\n", 1))
        self.assertFalse(state.output("    indented\n", 1))

    def test_build_shows_actions_and_their_pace(self):
        state = self._state()
        state.output("[10 / 1,210] Compiling\n", 10)
        state.output("[610 / 1,210] Compiling\n", 70)
        self.assertEqual(state.line(71),
                         "1:11  610 / 1210 actions, about 60 s left")

    def test_build_that_finds_more_actions_shows_a_lower_bound(self):
        state = self._state()
        state.output("[10 / 210] Compiling\n", 10)
        state.output("[110 / 211] Compiling\n", 20)
        self.assertEqual(state.line(20),
                         "0:20  110 / 211 actions, more than 9 s left")
        self.assertEqual(state.line(90).split(", ")[1][:5], "about")

    def test_build_that_failed_counts_targets(self):
        state = self._state(_completed("//a:library", completed={}))
        self.assertIn("1 failed", state.line(1))

    def test_tests_are_counted_by_target(self):
        state = self._state(
            _configured("//a:one"), _configured("//a:two"),
            _configured("//a:three"), _configured("//a:four"),
            _configured("//a:library", "cc_library rule"),
            _result("//a:one", 4), _summary("//a:one"),
            _result("//a:two", 4), _summary("//a:two", "TIMEOUT"),
            _completed("//a:three", completed={}))
        self.assertEqual(state.line(9), "0:09  3 / 4 test targets, 2 failed")

    def test_target_of_another_machine_is_not_counted(self):
        state = self._state(
            _configured("//a:one"),
            _completed("//a:one", aborted={"reason": "SKIPPED"}))
        self.assertNotIn("test targets", state.line(1))

    def test_interrupted_target_is_no_failure(self):
        state = self._state(
            _configured("//a:one"),
            _completed("//a:one", aborted={"reason": "USER_INTERRUPTED"}))
        self.assertIn("0 / 1 test targets, 0 failed", state.line(1))

    def _left(self, state, elapsed):
        return state.line(elapsed).rpartition(", ")[2]

    def test_time_left_is_what_targets_took_last_time(self):
        state = self._state(
            _configured("//a:one"), _configured("//a:two"),
            seconds={"//a:one": 400, "//a:two": 200, "//b:gone": 5000})
        state.output("[1 / 3] Testing\n", 0)
        self.assertEqual(self._left(state, 0), "about 5 min left")

    def test_time_left_of_exclusive_targets_uses_one_core(self):
        state = self._state(
            _configured("//a:one", tags=["exclusive"]),
            seconds={"//a:one": 600})
        state.output("[1 / 2] Testing\n", 0)
        self.assertEqual(self._left(state, 0), "about 10 min left")

    def test_time_left_of_unknown_target_is_the_mean_of_this_run(self):
        state = self._state(
            _configured("//a:one"), _configured("//a:two"),
            _result("//a:one", 100), _summary("//a:one"),
            seconds={"//b:other": 9999})
        state.output("[1 / 2] Testing\n", 0)
        self.assertEqual(self._left(state, 50), "about 50 s left")

    def test_time_left_without_any_length_is_a_lower_bound(self):
        state = self._state(_configured("//a:one"))
        state.output("[10 / 21] Compiling\n", 0)
        self.assertEqual(self._left(state, 40), "more than 40 s left")

    def test_time_left_with_most_lengths_unknown_is_a_lower_bound(self):
        state = self._state(
            _configured("//a:one"), _configured("//a:two"),
            _configured("//a:three"), _configured("//a:four"),
            _result("//a:one", 100), _summary("//a:one"),
            seconds={"//a:two": 100})
        state.output("[1 / 4] Testing\n", 0)
        self.assertEqual(self._left(state, 50), "more than 2 min left")

    def test_time_left_with_an_unknown_exclusive_target_is_a_lower_bound(self):
        state = self._state(
            _configured("//a:one"), _configured("//a:two"),
            _configured("//a:three", tags=["exclusive"]),
            _result("//a:one", 10), _summary("//a:one"),
            _result("//a:two", 20), _summary("//a:two"))
        state.output("[2 / 3] Testing\n", 0)
        self.assertEqual(self._left(state, 15), "more than 15 s left")

    def test_cached_result_says_nothing_about_length(self):
        state = self._state(
            _configured("//a:one"), _result("//a:one", 100, cached=True),
            _summary("//a:one"), seconds={"//a:one": 80})
        self.assertEqual(state.seconds(), {"//a:one": 80})

    def test_seconds_for_the_next_run_sum_shards_and_keep_others(self):
        state = self._state(
            _configured("//a:one"), _result("//a:one", 2),
            _result("//a:one", 3), _summary("//a:one"),
            seconds={"//a:one": 80, "//b:other": 7})
        self.assertEqual(state.seconds(), {"//a:one": 5, "//b:other": 7})


if __name__ == "__main__":
    unittest.main()
