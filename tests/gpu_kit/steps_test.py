# SPDX-License-Identifier: Apache-2.0
"""The list of steps, and the order and the time in which kit.py runs them."""

import contextlib
import io
import os
import tempfile
import unittest
from unittest import mock

from tests.gpu_kit import catalogue
from tests.gpu_kit import kit
from tests.gpu_kit import record

_CALL = 600  # seconds of one command on the machine with the GPU


class CatalogueTest(unittest.TestCase):
    def test_each_step_has_a_file_and_each_file_a_step(self):
        folder = os.path.join(os.path.dirname(catalogue.__file__), "steps")
        files = {name[:-3] for name in os.listdir(folder)
                 if name.endswith(".py") and name != "__init__.py"}
        self.assertEqual(files, {step.file for step in catalogue.STEPS})

    def test_each_step_fits_into_one_command(self):
        for step in catalogue.STEPS:
            self.assertLess(step.usual, step.limit, step.name)
            self.assertLessEqual(step.limit, 500, step.name)
            self.assertLess(step.limit, _CALL)

    def test_names_are_one_each(self):
        names = [step.name for step in catalogue.STEPS]
        self.assertEqual(len(names), len(set(names)))

    def test_named_keeps_the_order_and_refuses_others(self):
        found = catalogue.named(["evict", "first"])
        self.assertEqual([step.name for step in found], ["first", "evict"])
        with self.assertRaisesRegex(KeyError, "nosuch"):
            catalogue.named(["first", "nosuch"])


class RunTest(unittest.TestCase):
    """With a clock and steps of the test's own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.results = record.Record(
            os.path.join(folder.name, "result.json"), {}, "cuda")
        self.now = 0.
        self.limits = {}
        self.steps = [catalogue.Step(name, name, usual, 100)
                      for name, usual in (("a", 40), ("b", 40), ("c", 8))]
        for patch in (
                mock.patch.object(kit.time, "monotonic", lambda: self.now),
                mock.patch.object(kit, "_one", self._one)):
            patch.start()
            self.addCleanup(patch.stop)

    def _one(self, place, results, step, limit, args):
        del place, args
        self.limits[step.name] = limit
        self.now += min(step.usual, limit)
        if limit < step.usual:
            results.unfinished(step.name, "stopped")
        else:
            results.finish(step.name, {"verdict": record.OK})

    def _run(self, until):
        todo = [step for step in self.steps
                if not self.results.is_finished(step.name)]
        with contextlib.redirect_stdout(io.StringIO()):
            left = kit._run(None, self.results, todo, None, until)
        return [step.name for step in left]

    def test_without_a_time_everything_is_run(self):
        self.assertEqual(self._run(None), [])
        self.assertEqual(self.limits, {"a": 100, "b": 100, "c": 100})

    def test_a_step_that_does_not_fit_is_not_begun(self):
        self.assertEqual(self._run(until=80), ["b", "c"])
        self.assertIsNone(self.results.verdict("b"))
        self.assertEqual(self._run(until=200), [])

    def test_the_first_one_always_begins(self):
        self.assertEqual(self._run(until=41), ["b", "c"])
        self.assertEqual(self.limits, {"a": 41})

    def test_one_that_is_stopped_begins_the_next_call(self):
        self.assertEqual(self._run(until=30), ["a", "b", "c"])
        self.assertFalse(self.results.is_finished("a"))
        self.now = 0.
        self.assertEqual(self._run(until=100), [])


if __name__ == "__main__":
    unittest.main()
