# SPDX-License-Identifier: Apache-2.0
"""Tables of states that lack a row or a test, each planted."""

import unittest

from tests.repository.tidy.planted_tree import SPDX, RuleCase

_HEADER = "allocator/memory/handle_table.h"
_TABLE = "allocator/RESIDENCY.md"
_TEST = "allocator/block_test.cc"
_FIRST = "| kAway (or not) | → kHere, in the end | – |\n"
_LAST = "| kHere | used | ignored |\n"


class StateTableTest(RuleCase):
    def setUp(self):
        super().setUp()
        self.files = {
            "allocator/memory/BUILD.bazel": f"# {SPDX}"
            'cc_library(name = "table", hdrs = ["handle_table.h"])\n',
            _HEADER: self._header("enum class HandleState : int {\n"
                                  "  kHere = 0,  // not kThere = 1\n"
                                  "  kAway = 2,\n};\nenum class X { kX = 1 };"),
            _TABLE: "kGone, see `OtherTest.Name`.\n\n"
            "| state | look `LookCells` | pin `PinCells` |\n|---|---|---|\n"
            + _FIRST + _LAST,
            _TEST: f"// {SPDX}class LookCells;\nclass PinCells;\n"
            "class OtherTest;\nTEST_F(LookCells, AwayPageReturns) {}\n"
            "TEST_F(LookCells, HerePageIsUsed) {}\n"
            "TEST(PinCells, HerePageStays) {}\nTEST_P(OtherTest, Name) {}\n",
        }

    def test_complete_table_has_no_complaint(self):
        self.assertEqual(self._complaints(self.files), {})

    def test_state_without_one_row_is_named(self):
        text = self.files[_TABLE]
        self._expect("handle_states", f"{_TABLE}:3: 0 rows for kAway", {
            **self.files, _TABLE: text.replace(_FIRST, ""),
            _TEST: self.files[_TEST].replace(
                "TEST_F(LookCells, AwayPageReturns) {}\n", "")})
        for planted, start in (
            (text + _FIRST, ":3: 2 rows for kAway"),
            (text.replace("→ kHere", "→ kGone"), ":5: kGone; "),
            (text + "| kGone | – | – |\n", ":7: kGone; "),
        ):
            with self.subTest(planted):
                self._expect("handle_states", _TABLE + start,
                             {**self.files, _TABLE: planted})
        self._expect("handle_states", f"{_TABLE}:3: 0 rows for kMoving",
                     {**self.files, _HEADER: self.files[_HEADER].replace(
                         "};\nenum", "  kMoving = 3,\n};\nenum")})

    def test_cell_without_its_test_is_named(self):
        for gone, start in (
            ("TEST_F(LookCells, AwayPageReturns) {}\n",
             ":5: no test LookCells.AwayPage"),
            ("TEST(PinCells, HerePageStays) {}\n",
             ":6: no test PinCells.HerePage"),
            ("TEST_P(OtherTest, Name) {}\n", ":1: `OtherTest.Name` is no test"),
        ):
            with self.subTest(gone):
                self._expect("state_tests", _TABLE + start, {
                    **self.files, _TEST: self.files[_TEST].replace(gone, "")})

    def test_test_without_its_cell_is_named(self):
        for test, start in (
            ("PinCells, AwayPageStays", ":5: PinCells has a test of kAway"),
            ("PinCells, PageStays", ": PinCells.PageStays is the test of no"),
        ):
            with self.subTest(test):
                self._expect("state_tests", _TABLE + start, {
                    **self.files,
                    _TEST: self.files[_TEST] + f"TEST_F({test}) {{}}\n"})

    def test_column_without_a_suite_is_named(self):
        text = self.files[_TABLE].replace("look `LookCells`", "look")
        self._expect("state_tests", f"{_TABLE}:3: column 2 names no suite",
                     {**self.files, _TABLE: text})


if __name__ == "__main__":
    unittest.main()
