# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what differs, what fails, and what only counts on a GPU."""

import json
import os
import tempfile
import unittest

from tests.gpu_kit import answer
from tests.gpu_kit import record


class AnswerTest(unittest.TestCase):
    def _answers(self):
        return {device: answer.Answer(device, "?") for device in
                ("cuda", "sim")}

    def _verdicts(self, function):
        said = self._answers()
        for each in said.values():
            function(each)
        return said["cuda"].verdict, said["sim"].verdict

    def test_nothing_said_is_ok(self):
        self.assertEqual(self._verdicts(lambda said: None), ("ok", "ok"))

    def test_a_figure_near_the_simulated_one_is_ok(self):
        self.assertEqual(self._verdicts(
            lambda said: said.figure("map", 2.4, "us", 2.0)), ("ok", "ok"))

    def test_a_figure_far_from_it_differs_and_of_itself_fails(self):
        for value in (5.0, .5):
            self.assertEqual(self._verdicts(
                lambda said, value=value: said.figure(
                    "map", value, "us", 2.0)), ("differs", "failed"))

    def test_a_floor_keeps_small_differences_out(self):
        self.assertEqual(self._verdicts(
            lambda said: said.figure("map", 3.0, "us", 0, floor=5)),
            ("ok", "ok"))
        self.assertEqual(self._verdicts(
            lambda said: said.figure("map", 6.0, "us", 0, floor=5)),
            ("differs", "failed"))

    def test_a_fact_that_is_another_differs(self):
        self.assertEqual(self._verdicts(
            lambda said: said.fact("unmap waits", True, False)),
            ("differs", "failed"))
        said = answer.Answer("cuda", "?")
        said.fact("unmap waits", True, False)
        self.assertEqual(said.values()["sentences"], [
            "unmap waits: yes here, no on the simulated device"])

    def test_a_promise_that_does_not_hold_fails_everywhere(self):
        self.assertEqual(self._verdicts(
            lambda said: said.promise("same bytes", False, "others")),
            ("failed", "failed"))

    def test_bars_are_judged_on_a_gpu_only(self):
        self.assertEqual(self._verdicts(
            lambda said: said.bar("of a copy", .5, at_least=.95)),
            ("differs", "ok"))
        self.assertEqual(self._verdicts(
            lambda said: said.bar("of a copy", .99, at_least=.95)),
            ("ok", "ok"))

    def test_not_here_is_not_ok_and_says_why(self):
        said = answer.Answer("sim", "?")
        said.not_here("no compiler")
        self.assertEqual(said.verdict, record.NOT_HERE)
        self.assertEqual(said.values()["sentences"], ["no compiler"])

    def test_what_it_knew_is_in_the_file_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "step.json")
            said = answer.Answer("cuda", "?", path)
            said.figure("map", 2.0, "us")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["figures"],
                                 {"map": {"value": 2.0, "unit": "us"}})


if __name__ == "__main__":
    unittest.main()
