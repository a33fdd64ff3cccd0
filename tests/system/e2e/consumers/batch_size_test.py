# SPDX-License-Identifier: Apache-2.0
"""accelerate's find_executable_batch_size, unpatched: out of memory for real,
several times, and on with a smaller batch."""

import pytest

from tests.system.e2e.consumers import asking

HALVING, TENTHS = "batch_size.halving", "batch_size.by_tenths"


def _sizes(saw, name):
    return [size for size, _ in saw[name]["result"]["tried"]]


def test_half_a_batch_is_enough_for_both():
    native, tiering = [
        asking.ask(way, conf, "80MiB", [HALVING])
        for way, conf in (asking.WAYS[0], asking.WAYS[2])]
    assert _sizes(native, HALVING) == [4096, 2048, 1024]
    assert _sizes(tiering, HALVING)[-1] >= 1024


@pytest.mark.long
def test_find_executable_batch_size():
    native, ours, tiering = [
        asking.ask(way, conf, "80MiB", [HALVING, TENTHS])
        for way, conf in asking.WAYS]
    # Half a batch less is the same batch for both.
    assert _sizes(native, HALVING) == [4096, 2048, 1024]
    assert not asking.first_difference(native[HALVING], ours[HALVING])
    # By tenths ours comes out with the larger one: it wastes less.
    sizes = [4096]
    while len(sizes) < 12:
        sizes.append(int(sizes[-1] * 0.9))
    for saw in (native, ours, tiering):
        tried = _sizes(saw, TENTHS)
        assert len(tried) > 2 and tried == sizes[:len(tried)]
        assert saw[TENTHS]["counts"]["num_ooms"] == len(tried) - 1
    assert _sizes(ours, TENTHS)[-1] >= _sizes(native, TENTHS)[-1]
    # With tiering even more fits; what is computed is the same where it does.
    for name in (HALVING, TENTHS):
        assert _sizes(tiering, name)[-1] >= _sizes(ours, name)[-1]
