# SPDX-License-Identifier: Apache-2.0
"""The step that runs end-to-end tests: which cases, and what is kept of them."""

import contextlib
import io
import os
import tempfile
import unittest
from unittest import mock

from tests.gpu_kit import answer
from tests.gpu_kit import place
from tests.gpu_kit.steps import e2e

_CASES = """
import pytest

@pytest.mark.long
def test_slow():
    assert False, "a long case ran"

def test_usual():
    assert not {fails}, "the cause " + "x" * 9000 + " the end"
"""


class EndToEndStepTest(unittest.TestCase):
    def _said(self, cases, quick, device="cuda"):
        """What the step says of a file with these cases, and what it prints."""
        with tempfile.TemporaryDirectory() as root:
            folder = os.path.join(root, "tests", "system", "e2e")
            os.makedirs(folder)
            path = os.path.join(folder, "some_test.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(cases)
            said = answer.Answer(device, "?", quick=quick, of="some")
            printed = io.StringIO()
            with mock.patch.object(place, "ROOT", root), \
                    mock.patch.dict(os.environ, {"KIT_WORK": root}), \
                    contextlib.redirect_stdout(printed):
                e2e.run(said)
        return said.values(), printed.getvalue()

    def test_quick_leaves_long_cases_out(self):
        values, printed = self._said(_CASES.format(fails=False), quick=True)
        self.assertEqual(values["verdict"], "ok")
        self.assertEqual(values["figures"]["cases"]["value"], 1)
        self.assertEqual(printed, "")

    def test_of_long_cases_alone_quick_says_so(self):
        values, _ = self._said(_CASES.partition("def test_usual")[0],
                               quick=True)
        self.assertEqual(values["verdict"], "ok")
        self.assertEqual(values["notes"], ["every case is long"])

    def test_file_that_does_not_import_fails_on_the_simulated_device(self):
        values, _ = self._said("import nothing_of_this_name", quick=True,
                               device="sim")
        self.assertEqual(values["verdict"], "failed")
        self.assertIn("nothing_of_this_name", values["sentences"][0])

    def test_long_cases_alone_are_none_on_the_simulated_device(self):
        values, _ = self._said(_CASES.partition("def test_usual")[0],
                               quick=True, device="sim")
        self.assertEqual(values["verdict"], "ok")

    def test_of_a_failed_case_the_beginning_and_the_end_are_said(self):
        values, printed = self._said(_CASES.format(fails=True), quick=False)
        self.assertEqual(values["verdict"], "failed")
        long, usual, ended = values["sentences"]
        self.assertIn("a long case ran", long)
        self.assertRegex(usual, r"(?s)^test_usual: AssertionError: the cause x+"
                                r"\n\.\.\. \d+ characters are left out \.\.\.\n"
                                r".* the end")
        self.assertLess(len(usual), 3200)
        self.assertEqual(ended, "pytest ends well: no: exit code 1")
        self.assertIn("2 failed", printed)
        self.assertNotIn("PytestUnknownMarkWarning", printed)


if __name__ == "__main__":
    unittest.main()
