# SPDX-License-Identifier: Apache-2.0
"""The step that runs the conformance suite: which answers count as differences."""

import json
import os
import tempfile
import unittest
from unittest import mock

from tests.gpu_kit import answer
from tests.gpu_kit.steps import conformance

_PROGRAM = """#!/bin/sh
while [ "$1" != --json ]; do shift; done
cp "$KIT_FOLDER/found.json" "$2"
"""


def _check(name, kind, ok, known=False):
    return {"id": name, "kind": kind, "ok": ok, "known": known,
            "expected": "refused", "actual": "done"}


class ConformanceStepTest(unittest.TestCase):
    def _said(self, *checks):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "conformance")
            with open(program, "w", encoding="utf-8") as file:
                file.write(_PROGRAM)
            os.chmod(program, 0o755)
            with open(os.path.join(folder, "found.json"), "w",
                      encoding="utf-8") as file:
                json.dump({"checks": checks}, file)
            said = answer.Answer("cuda", "?")
            with mock.patch.dict(os.environ, {"KIT_FOLDER": folder,
                                              "KIT_WORK": folder}):
                conformance.run(said)
        return said.values()

    def test_known_answer_is_listed_and_no_difference(self):
        values = self._said(_check("a.b.c", "believed", True),
                            _check("a.b.d", "believed", True, known=True))
        self.assertEqual(values["verdict"], "ok")
        self.assertEqual(values["sentences"], [])
        (listed,) = values["tables"][
            "checks that do not hold, were not asked, or are known to differ"]
        self.assertEqual(listed["id"], "a.b.d")

    def test_other_answer_differs_or_fails(self):
        values = self._said(_check("a.b.c", "believed", False))
        self.assertEqual(values["verdict"], "differs")
        values = self._said(_check("a.b.c", "documented", False))
        self.assertEqual(values["verdict"], "failed")
        self.assertEqual(values["sentences"], [
            "a.b.c: done here, refused on the simulated device"])


if __name__ == "__main__":
    unittest.main()
