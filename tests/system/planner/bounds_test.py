# SPDX-License-Identifier: Apache-2.0
"""Bounds on cycles small enough to count, and the share that plans reach."""

import random
import unittest

from tests.system.planner import bounds

_RATES = bounds.Rates(into=10.0, out=20.0)


def _operator(nanoseconds=0, read=(), written=(), new=(), freed=()):
    operator = bounds.Operator(nanoseconds)
    operator.read, operator.written = list(read), list(written)
    operator.new, operator.freed = list(new), list(freed)
    return operator


def _lower(operators, capacity, rates=_RATES):
    return bounds.lower(operators, capacity, rates)


class LowerTest(unittest.TestCase):

    def test_forward_takes_what_the_device_lacks(self):
        forward = [_operator(1, read=[page]) for page in range(10)]
        self.assertEqual(_lower(forward, 6), 40)
        self.assertEqual(_lower(forward, 10), 10, "compute alone")

    def test_windows_add_up(self):
        """Compute of one half does not hide the copies of the other."""
        cycle = [_operator(25, read=[0]) for _ in range(4)]
        cycle += [_operator(0, read=[page]) for page in range(10)]
        self.assertEqual(_lower(cycle, 2), 100 + 80)

    def test_new_pages_come_in_free(self):
        cycle = [_operator(1, new=[page], freed=[page]) for page in range(10)]
        self.assertEqual(_lower(cycle, 2), 10)

    def test_dead_page_makes_room_before_its_free(self):
        gradients = [_operator(read=[0, 1])]
        gradients += [_operator(new=[10 + i]) for i in range(4)]
        gradients[-1].freed = [10, 11, 12, 13]
        gradients += [_operator(new=[10], freed=[10]), _operator(read=[0, 1])]
        following = bounds._next_uses(gradients)
        self.assertEqual(bounds.misses(gradients, following, 0, 3)[-1], 2,
                         "0 and 1 stay")

    def test_written_pages_go_out(self):
        cycle = [_operator(1, written=[page]) for page in range(10)]
        self.assertEqual(_lower(cycle, 6), 80)
        cycle[-1].freed = list(range(5))
        self.assertEqual(_lower(cycle, 8), 21,
                         "one goes out before the last operator's free")

    def test_shared_bus_slows_both_directions(self):
        cycle = [_operator(1, written=[page]) for page in range(10)]
        self.assertEqual(_lower(cycle, 6, bounds.Rates(10, 10, both=8)), 64)

    def test_misses_are_least_for_every_end(self):
        chance = random.Random(4)
        for _ in range(30):
            operators = []
            for _ in range(24):
                pages = chance.sample(range(8), 2)
                operators.append(chance.choice([
                    _operator(read=pages), _operator(written=pages),
                    _operator(read=pages[:1], freed=pages[:1])]))
            counts = bounds.misses(
                operators, bounds._next_uses(operators), 0, 3)
            for end in range(1, len(operators) + 1):
                short = operators[:end]
                self.assertEqual(counts[end], bounds.misses(
                    short, bounds._next_uses(short), 0, 3)[-1])


class PipelineTest(unittest.TestCase):

    def test_cycle_that_fits_computes_only(self):
        forward = [_operator(7, read=[page]) for page in range(5)]
        pipeline = bounds.Pipeline(forward, set(), 5, _RATES, 1.0)
        self.assertEqual(bounds.steady(pipeline), 35)
        self.assertEqual((pipeline.into, pipeline.out), (0, 0))

    def test_marked_pages_come_and_go_once(self):
        cycle = [_operator(7, written=[page]) for page in range(6)]
        pipeline = bounds.Pipeline(cycle, {1, 4}, 6, _RATES, 1.0)
        bounds.steady(pipeline)
        self.assertEqual(
            (pipeline.into, pipeline.out, pipeline.unplanned), (2, 2, 0))


class RecordedTest(unittest.TestCase):
    """The least share of the bound; pages of 32 MiB, 55 GB/s each way."""

    # trace, multiple, compute by the bus's least time: share
    _LEAST = {
        ("inference", 2.0, 0.1): 0.94,
        ("inference", 2.0, 1.0): 0.94,
        ("inference", 2.0, 2.0): 0.99,
        ("adamw_fused", 1.5, 0.1): 0.98,
        ("adamw_fused", 2.0, 0.1): 0.95,
        ("adamw_fused", 2.0, 1.0): 0.99,
        ("adamw_fused", 3.0, 1.0): 0.99,
        ("sgd", 2.0, 1.0): 0.81,  # three sweeps of lists without compute
        ("sgd", 2.0, 2.0): 0.99,
    }

    def test_schedule_reaches_its_share_and_never_beats_the_bound(self):
        for case, least in self._LEAST.items():
            with self.subTest(case=case):
                values = bounds.row(*case, bounds.H200)
                self.assertGreaterEqual(values["of_bound"], least)
                self.assertLessEqual(values["of_bound"], 1.0001)
                self.assertEqual(values["unplanned"], 0)


if __name__ == "__main__":
    unittest.main()
