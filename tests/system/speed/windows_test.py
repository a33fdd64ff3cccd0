# SPDX-License-Identifier: Apache-2.0
"""The bound by windows and the optimum, on steps small enough to count."""

import pytest

from tests.system.speed import windows

# A page is 10 bytes; the bus takes 10 ns for one in and 20 ns for one out.
_PAGE, _BUS = 10, (1e9, .5e9)


def _of(lines, capacity, live):
    """Of one cycle of these lines, on a device of so many pages."""
    text = "\n".join([f"b test {live}", *lines, "c", ""])
    return windows.of_trace(text, _PAGE, capacity * _PAGE, _BUS)


def test_forward_needs_what_is_missing():
    found = _of([f"o 1 r {page}" for page in range(10)], 6, 10)
    assert (found.ns, found.optimum_in, found.capacity) == (40., 40, 60)


def test_computing_of_one_window_hides_no_bytes_of_another():
    """Four operators compute 25 ns on one page; ten pages follow, of which two
    may be there: 100 + 80 ns, not the longer of both."""
    found = _of(["o 25 r 0"] * 4 + [f"o 0 r {page}" for page in range(10)],
                2, 10)
    assert found.ns == 180.


def test_written_pages_go_out():
    found = _of([f"o 1 w {page}" for page in range(10)], 6, 10)
    assert (found.ns, found.optimum_in) == (80., 40)


def test_dead_gradient_leaves_before_a_parameter():
    """Pages 0 to 3 are parameters, 4 to 7 gradients. Where the last one is made
    eight pages are live, so with room for six two leave and come back. Behind
    its last use a gradient is the first to leave, long before its free."""
    step = [f"o 1 r {page} n {page + 4}" for page in range(4)]
    step += [f"o 1 r {page},{page + 4}" for page in (3, 2, 1, 0)]
    step.append("f 4-7")
    assert _of(step, 6, 8).optimum_in == 20
    assert _of(step, 7, 8).optimum_in == 10
    assert _of(step, 8, 8).optimum_in == 0


def test_gradient_dead_at_its_making_is_never_copied_in():
    step = [f"o 1 r {page} n {page + 4}" for page in range(4)] + ["f 4-7"]
    assert _of(step, 5, 8).optimum_in == 0


def test_device_with_room_computes_only():
    found = _of([f"o 3 w {page}" for page in range(5)], 5, 5)
    assert (found.ns, found.optimum_in) == (15., 0)


def test_live_bytes_are_those_of_the_heading():
    assert windows.live("b test 7\nc\n", _PAGE) == 70


def test_trace_without_a_cycle_is_refused():
    with pytest.raises(IndexError):
        windows.of_trace("b test 1\no 1 r 0\n", _PAGE, 10, _BUS)


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
