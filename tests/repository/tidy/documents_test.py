# SPDX-License-Identifier: Apache-2.0
"""Documents that cite or name too much or too little, each planted."""

import unittest

from tests.repository.tidy.planted_tree import CLEAN, SPDX, RuleCase


class DocumentsTest(RuleCase):
    def test_unknown_rule(self):
        # In two parts, for the rule itself reads this file.
        for text, line, number in (
            ("design ru" "le 3", 2, 3),
            ("Ru" "le 12: nothing", 2, 12),
            ("ru" "les 1, 2 and 3", 2, 3),
            ("ru" "les 1, 2, and 3", 2, 3),
            ("ru" "les 1–3", 2, 3),
            ("ru" "les 4 and 1", 2, 4),
            ("the design ru" "le\n//   3 says", 2, 3),
            ("ru" "les 1 and\n// 3", 2, 3),
            ("\n\n// ru" "le 3", 4, 3),
        ):
            with self.subTest(text):
                self._expect(
                    "unknown_rules",
                    f"allocator/block.h:{line}: rule {number}; DESIGN.md",
                    {"allocator/block.h": self._header(f"// {text}")},
                )

    def test_unknown_rule_in_other_files(self):
        for path, mark in (("allocator/README.md", ""), ("dev", "# "),
                           ("allocator/BUILD.bazel", "# "),
                           ("bazel/cc.bzl", "# ")):
            with self.subTest(path):
                text = CLEAN[path] + f"\n{mark}See ru" "le 3.\n"
                self._expect(
                    "unknown_rules",
                    f"{path}:{text.count(chr(10))}: rule 3",
                    {path: text},
                )

    def test_unknown_names_in_a_readme(self):
        for name in ("`Block::Gone`", "`BlockGone`", "`BlockGone()`",
                     "`gone_`", "`gone.cc`", "`allocator/gone.h`"):
            with self.subTest(name):
                self._expect(
                    "unknown_names",
                    f"allocator/README.md:4: {name} is nowhere",
                    {"allocator/README.md": CLEAN["allocator/README.md"]
                     + f"\nSee {name}.\n"},
                )

    def test_broken_links(self):
        for link in ("gone.md", "../gone", "base/gone.md#place"):
            with self.subTest(link):
                self._expect(
                    "broken_links",
                    f"allocator/README.md:4: {link.partition('#')[0]} is not",
                    {"allocator/README.md": CLEAN["allocator/README.md"]
                     + f"\nSee [it]({link}).\n"})
        self.assertEqual(self._complaints({
            "allocator/README.md": CLEAN["allocator/README.md"]
            + "\n[a](base/README.md), [b](base), [c](https://gone), "
            "[d](#gone), ![e](gone.png)\n```\n[f](gone)\n```\n"}), {})

    def test_unknown_names_in_a_comment(self):
        code = "struct Block { int left_; };\nclass API(x) Pool {};\n"
        for text, name in (("see gone.cc", "gone.cc"),
                           ("as GoneLocked does", "GoneLocked"),
                           ("Block::Gone", "Block::Gone"),
                           ("Pool::Gone", "Pool::Gone")):
            with self.subTest(text):
                self._expect(
                    "unknown_names",
                    f"allocator/block.h:4: {name} is nowhere",
                    {"allocator/block.h": self._header(f"{code}// {text}")},
                )

    def test_names_that_are_there_or_not_ours(self):
        self.assertEqual(self._complaints({
            "allocator/README.md": CLEAN["allocator/README.md"]
            + "\n`block.cc`, `kText`, `LockRank::kFirst`, `Word`, `left_`,\n"
            "`a sentence of Gone::Gone`.\n```\n`Gone::Gone`\n```\n",
            "tests/README.md": "`Gone::Gone`\n",
            "allocator/block.h": self._header(
                "struct Block { int left_; };\n"
                "// Dispatcher::Gone, <gone.h>, block.cc, Block::left_"),
        }), {})

    def test_lock_order(self):
        design = CLEAN["DESIGN.md"]
        first, second = "| kFirst | a |\n", "| kSecond | b |\n"
        for text, start in (
            (design.replace(second, second + "| kGone | c |\n"),
             "DESIGN.md:17: kGone; allocator/base/lock_ranks.h"),
            (design.replace(second, ""), "DESIGN.md: no row for kSecond"),
            (design.replace(first + second, second + first),
             "DESIGN.md: the rows under"),
            (design.replace(second, second + second),
             "DESIGN.md: a rank twice"),
        ):
            with self.subTest(start):
                self._expect("lock_order", start, {"DESIGN.md": text})

    def test_a_rank_of_which_the_design_says_nothing(self):
        path = "allocator/base/lock_ranks.h"
        self._expect(
            "lock_order",
            "DESIGN.md: no row for kThird",
            {path: CLEAN[path].replace("};", "  kThird = 30,\n};")},
        )

    def test_a_design_without_rules_has_none_to_cite(self):
        rules_of = "## Residency rules"
        found = self._complaints({
            "DESIGN.md": CLEAN["DESIGN.md"].replace(rules_of, "## Not them")})
        self.assertEqual(list(found), ["unknown_rules"], found)
        self.assertEqual(len(found["unknown_rules"]), 4, found)


if __name__ == "__main__":
    unittest.main()
