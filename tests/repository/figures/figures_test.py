# SPDX-License-Identifier: Apache-2.0
"""The READMEs say what was measured, and nothing else between the marks."""

import unittest

from tests.repository.figures import blocks, figures

_MIB = 1 << 20


def _replayed(reserved, first=10.0, later=0.0):
    return {"reserved": reserved * _MIB, "reserved_at_allocated": 3 * _MIB,
            "allocated": 2 * _MIB, "ns": [90.0, 100.0, 500.0],
            "card_ns": {"first": first, "later": later}}


class FiguresTest(unittest.TestCase):
    def test_every_readme_says_what_was_measured(self):
        self.assertEqual(
            list(figures.stale(figures.ROOT)), [],
            "python3 -m tests.repository.figures.figures --write")

    def test_a_block_is_renewed_and_the_rest_is_kept(self):
        text = "a\n<!-- figures: x -->\nold\n<!-- end of figures -->\nb\n"
        self.assertEqual(figures.renewed(text, "x", ["1", "", "2"]),
                         text.replace("old", "1\n\n2"))

    def test_a_block_has_both_marks_once(self):
        begin, end = "<!-- figures: x -->\n", "<!-- end of figures -->\n"
        for text in ("", begin, end, end + begin, begin + end + end,
                     begin + begin + end, begin.replace("x", "y") + end):
            with self.subTest(text), self.assertRaises(figures.NoBlockError):
                figures.renewed(text, "x", [])

    def test_a_replay_above_the_smaller_native(self):
        lines = list(blocks.replay({"traces": {
            "one": {"native": _replayed(9), "expandable": _replayed(8),
                    "stratalloc": _replayed(8, 80.0, 900.0),
                    "tiered": _replayed(10, 5.0)},
            "two": {"native": _replayed(9, later=900.0),
                    "expandable": _replayed(9), "stratalloc": _replayed(9),
                    "tiered": _replayed(9)}}}))
        said = " ".join("\n".join(lines).split())
        self.assertIn("native 1.5000", said)
        self.assertIn(
            "| one | 9 | 8 | 8 | **10** | 10 / 10 / 80 / 5 | "
            "100 / 100 / 100 / 100 | 0 / 0 / 900 / 0 | 1.00, 10.00 |", lines)
        self.assertIn("| two | 9 | 9 | 9 | 9 | 10 / 10 / 10 / 10 | "
                      "100 / 100 / 100 / 100 | 900 / 0 / 0 / 0 | 0.10, 0.10 |",
                      lines)
        self.assertIn("Tiering on: the goal of 0.5 is met on 1 of 2 traces "
                      "(two), a first run takes 0.50 to 1.00 of native's time. "
                      "Peaks above the smaller native's: 1, by at most 25.0 % "
                      "(one).", said)
        self.assertTrue(said.endswith(
            "(two), a first run takes 1.00 to 8.00 of native's time. Peaks "
            "above the smaller native's: none."), said)

    def test_first_page_counts_peaks_above_the_smaller_native(self):
        traces = {trace: {name: _replayed(9) for name in blocks.ALLOCATORS}
                  for trace in ("llama", "generation")}
        *_, means, _, last = blocks.first_page({"traces": traces})
        self.assertEqual(means, "| reserved / allocated at the peak, 2 jobs | "
                                "1.50 | 1.50 | 1.50 |")
        self.assertTrue(last.endswith("in 0 of 2 jobs."), last)
        traces["two"] = {**traces["llama"], "tiered": _replayed(12)}
        *_, last = blocks.first_page({"traces": traces})
        self.assertTrue(last.endswith("in 1 of 3 jobs, by 33.3 % at most."),
                        last)

    def test_first_page_shows_peak_and_time_of_both_jobs(self):
        traces = {trace: {name: _replayed(9, later=50.0)
                          for name in blocks.ALLOCATORS}
                  for trace in ("llama", "generation")}
        traces["llama"]["tiered"]["reserved"] = 3 << 29
        lines = list(blocks.first_page({"traces": traces}))
        self.assertIn("1.50 GiB, 150 ns |", lines[2])
        self.assertTrue(lines[2].startswith("| training (llama): "), lines[2])
        self.assertIn("inference (generation): ", lines[3])

    def test_what_was_written_was_checked_and_what_was_read_was_not(self):
        measured = {
            "machine": {"cores": 2, "cpu": "C", "python": "3.11"},
            "events": 1000, "marks": 10, "rows": {
                "events.csv": {"seconds": 3.14, "grew": 3 << 20,
                               "bytes": 12_400_000, "check_seconds": 1.0,
                               "check_grew": 5 << 20},
                "metrics.om": {"seconds": 2.0, "grew": 0, "bytes": 4_600},
                "fit": {"seconds": 6.25, "grew": 1 << 20}}}
        self.assertEqual(list(blocks.exports(measured))[2:], [
            "| events.csv | 3.1 | 3 | 12 | 1.0 | 5 |",
            "| metrics.om | 2.0 | 0 | 0.0046 |  |  |",
            "| fit | 6.2 | 1 |  |  |  |", "",
            "1000 events and 10 marks, 2 cores of C, Python 3.11."])

    def test_a_ratio_that_misses_its_goal(self):
        machine = {"device": "simulated", "cores": 2, "cpu": "C",
                   "torch": "2.11.0"}
        rows = [
            {"name": "malloc/free 512 B", "group": "allocations, " + group,
             "value": value, "baseline": 400.0, "ratio": ratio,
             "goal": "<= 0.25x", "pass": ratio <= 0.25}
            for group, value, ratio in (
                ("tiering on", 90.4, 0.2), ("tiering off", 120.0, 0.3),
                ("tiering on, CUDA calls cost 300 ns", 80.0, 0.1))
        ] + [{"name": "op guard, two", "group": "operators", "value": 105.0,
              "baseline": 22.0, "goal": "<= +100"},
             {"name": "push+pop", "group": "operators", "value": 8.0,
              "baseline": None, "goal": None}]
        measured = {"machine": machine, "rounds": 15, "benchmarks": rows}
        self.assertEqual(list(blocks.allocations(measured))[2:], [
            "| 512 B | 90 | 120 | 400 | 0.20 | **0.30** | 0.10 | <= 0.25x |",
            "", "`stratalloc bench`, 15 rounds, simulated device, 2 cores of "
            "C, torch 2.11.0."])
        self.assertEqual(list(blocks.edges(measured, ("op", "push")))[2:4], [
            "| op guard, two | 105 | 22 | 83 | <= +100 |",
            "| push+pop | 8 | | |  |"])

    def test_a_level_takes_of_a_pair_three_events(self):
        machine = {"device": "simulated", "cores": 2, "cpu": "C",
                   "torch": "2.11.0"}
        row = {"group": "levels of telemetry", "goal": None, "pass": None}
        measured = {"machine": machine, "rounds": 15, "benchmarks": [
            {**row, "name": "one event", "value": 26.4, "baseline": None,
             "goal": "<= 25", "pass": False},
            {**row, "name": "malloc/free 512 B, events", "value": 150.0,
             "baseline": 90.0, "difference": 60.0},
            {**row, "group": "operators", "name": "no level", "value": 1.0,
             "baseline": None}]}
        self.assertEqual(list(blocks.levels(measured))[2:5], [
            "| one event | | | | **26** | <= 25 |",
            "| 512 B, events | 150 | 90 | 60 | 20 | |", ""])

    def test_a_share_that_misses_its_bar(self):
        machine = {"device": "simulated", "cores": 2, "cpu": "C",
                   "torch": "2.11.0"}
        node = {"name": "node", "value": 900.4, "baseline": 700.0,
                "difference": 199.6, "difference_range": [180.2, 221.0],
                "occurs": {"meta": 3, "cpu": 4}, "goal": "<= +100",
                "shares": {"meta": [0.002, 0.001, 0.003],
                           "cpu": [0.02, 0.01, 0.03]}, "pass": False}
        step = {**node, "name": "step", "occurs": {}, "goal": "<= 3%",
                "shares": {"cpu": [0.04, 0.036, 0.0442]}}
        measured = {"machine": machine, "rounds": 15, "benchmarks": [
            node, {"name": "push+pop", "value": 8.0, "baseline": None},
            step, {**step, "name": "held", "pass": True}]}
        self.assertEqual(list(blocks.attribution(measured))[2:5], [
            "| node | 900 | 700 | **200** (180 to 221) | 3, 4 | 0.2 % | "
            "2.0 % | <= +100 |",
            "| step | 900 | 700 | 200 (180 to 221) |  |  | **4.0 %** "
            "(3.6 to 4.4) | <= 3% |",
            "| held | 900 | 700 | 200 (180 to 221) |  |  | 4.0 % "
            "(3.6 to 4.4) | <= 3% |"])
        self.assertEqual(
            list(blocks.edges(measured, ("node",)))[2],
            "| node | 900 | 700 | 200 | <= +100 |")


if __name__ == "__main__":
    unittest.main()
