# SPDX-License-Identifier: Apache-2.0
"""The count of words per file fails upward and downward, and moves by name."""

import json
import unittest

from tests.repository.tidy import wording
from tests.repository.tidy.planted_tree import SPDX, RuleCase


class WordingTest(RuleCase):
    def test_word_above_the_list_is_reported(self):
        self._expect(
            "wording",
            "allocator/block.h: 1 words outside plain technical English, "
            "0 allowed (whoever 1)",
            {"allocator/block.h": f"// {SPDX}// For whoever waits.\n"},
        )

    def test_opening_with_what_is_reported(self):
        self._expect(
            "wording",
            "allocator/block.h: 1 words outside plain technical English, "
            "0 allowed (What ... 1)",
            {"allocator/block.h": f"// {SPDX}//\n// What is free.\n"},
        )

    def test_word_within_the_list_passes(self):
        self.assertEqual(self._complaints({
            "allocator/block.h": f"// {SPDX}// Nobody waits.\n",
            wording.LIST: json.dumps({"allocator/block.h": 1}),
        }), {})

    def test_count_below_the_list_is_reported(self):
        self._expect(
            "wording",
            f"allocator/block.h: {wording.LIST} allows 2 words and 1 are left",
            {
                "allocator/block.h": f"// {SPDX}// Nobody waits.\n",
                wording.LIST: json.dumps({"allocator/block.h": 2}),
            },
        )

    def test_identifier_with_the_word_inside_passes(self):
        self.assertEqual(self._complaints({
            "allocator/block.h": f"// {SPDX}int binned_away;\n",
        }), {})


class UpdateTest(unittest.TestCase):
    def test_update_lowers_and_drops_and_never_raises(self):
        limits = {"a.h": 3, "b.h": 1, "gone.h": 2}
        found = {"a.h": 2, "b.h": 5, "new.h": 1}
        self.assertEqual(wording.updated(limits, found), {"a.h": 2, "b.h": 1})

    def test_update_moves_the_entry_of_a_renamed_file(self):
        self.assertEqual(
            wording.updated({"old/a.h": 3}, {"new/a.h": 2}), {"new/a.h": 2})

    def test_update_keeps_the_entry_from_a_longer_file_of_the_name(self):
        self.assertEqual(wording.updated({"old/a.h": 3}, {"new/a.h": 4}), {})


if __name__ == "__main__":
    unittest.main()
