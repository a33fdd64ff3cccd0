# SPDX-License-Identifier: Apache-2.0
"""What a call costs by itself is told apart from what it does."""

import unittest

from tests.gpu_kit import call_costs


class SplitTest(unittest.TestCase):
    def setUp(self):
        self.now = 0
        self.times = call_costs.Times(lambda: self.now)

    def _took(self, amount, *costs):
        for cost in costs:
            self.times.timed("call", amount, self._pass, cost)

    def _pass(self, cost):
        self.now += cost

    def test_two_amounts_give_both_parts(self):
        self._took(1, 38)
        self._took(64, 2 + 64 * 36)
        self.assertEqual(self.times.split("call"), (2, 36))

    def test_rounds_that_were_interrupted_do_not_count(self):
        self._took(1, 38, 900, 38)
        self._took(64, 2 + 64 * 36, 2 + 64 * 36, 7000)
        self.assertEqual(self.times.split("call"), (2, 36))

    def test_one_amount_is_the_call(self):
        self._took(8, 5, 6, 7)
        self.assertEqual(self.times.split("call"), (6, 0))

    def test_no_part_is_negative(self):
        self._took(1, 30)
        self._took(64, 20)  # noise: more mappings took less
        self.assertEqual(self.times.split("call"), (30, 0))
        self._took(100, 300000)  # more than in proportion
        own, each = self.times.split("call")
        self.assertEqual(own, 0)
        self.assertGreater(each, 30)

    def test_operators_ask_twice_for_the_context(self):
        self.assertEqual(call_costs.of_an_operator(
            {"cudaGetDevice": 25, "cuDevicePrimaryCtxGetState": 200}), 500)


if __name__ == "__main__":
    unittest.main()
