# SPDX-License-Identifier: Apache-2.0
"""The result file: whole at every moment, and all that a resumed run needs."""

import json
import os
import tempfile
import unittest
from unittest import mock

from tests.gpu_kit import record

_KIT = {"commit": "abc"}


class RecordTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "result.json")

    def _open(self, device="cuda"):
        return record.Record(self.path, _KIT, device)

    def _read(self):
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)

    def test_what_is_finished_is_found_by_the_next_run(self):
        first = self._open()
        first.on_machine({"gpu": "A"})
        self.assertTrue(first.begin("costs"))
        first.finish("costs", {"verdict": record.OK, "seconds": 3.0})
        second = self._open()
        self.assertTrue(second.is_finished("costs"))
        self.assertEqual(second.step("costs"), {
            "verdict": "ok", "seconds": 3.0, "machine": 0, "commit": "abc"})

    def test_a_step_that_was_cut_off_is_not_finished(self):
        first = self._open()
        first.on_machine({"gpu": "A"})
        first.begin("costs")
        second = self._open()
        self.assertEqual(second.verdict("costs"), record.BEGUN)
        self.assertFalse(second.is_finished("costs"))
        self.assertTrue(second.begin("costs"))

    def test_a_step_cut_off_twice_does_not_keep_the_others(self):
        for _ in range(2):
            self.assertTrue(self._open().begin("costs"))
        last = self._open()
        self.assertFalse(last.begin("costs"))
        self.assertEqual(last.verdict("costs"), record.FAILED)
        self.assertIn("--again costs", last.step("costs")["sentences"][0])
        # Asked for by name it is tried again.
        self.assertTrue(self._open().begin("costs"))

    def test_want_of_time_is_no_try(self):
        for _ in range(5):
            results = self._open()
            self.assertTrue(results.begin("costs"))
            results.unfinished("costs", "stopped")

    def test_the_file_is_whole_though_a_write_is_cut_off(self):
        results = self._open()
        results.finish("first", {"verdict": record.OK})
        before = self._read()
        with mock.patch.object(json, "dump", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                results.finish("costs", {"verdict": record.OK})
        self.assertEqual(self._read(), before)

    def test_differences_are_listed_by_step(self):
        results = self._open()
        results.finish("costs", {"verdict": record.DIFFERS,
                                 "sentences": ["map: 5, not 2"]})
        results.finish("flash", {"verdict": record.NOT_HERE,
                                 "sentences": ["no compiler"]})
        self.assertEqual(self._read()["differences"], ["costs: map: 5, not 2"])
        results.finish("costs", {"verdict": record.OK})
        self.assertEqual(self._read()["differences"], [])

    def test_each_step_says_on_which_machine_it_ran(self):
        results = self._open()
        results.on_machine({"gpu": "A"})
        results.finish("first", {"verdict": record.OK})
        results = self._open()
        results.on_machine({"gpu": "B"})
        results.finish("costs", {"verdict": record.OK})
        results = self._open()
        results.on_machine({"gpu": "A"})
        results.finish("evict", {"verdict": record.OK})
        found = self._read()
        self.assertEqual(found["machines"], [{"gpu": "A"}, {"gpu": "B"}])
        self.assertEqual({name: step["machine"]
                          for name, step in found["steps"].items()},
                         {"first": 0, "costs": 1, "evict": 0})

    def test_a_file_of_another_device_is_refused(self):
        self._open("cuda").on_machine({})
        with self.assertRaisesRegex(record.RecordError, "of --device cuda"):
            self._open("sim")

    def test_what_is_no_result_is_refused_and_stays(self):
        for text in ("{", "[]", '{"a": 1}'):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.assertRaisesRegex(record.RecordError, "no result"):
                self._open()
            with open(self.path, encoding="utf-8") as file:
                self.assertEqual(file.read(), text)


if __name__ == "__main__":
    unittest.main()
