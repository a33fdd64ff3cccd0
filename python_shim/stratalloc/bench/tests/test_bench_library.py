# SPDX-License-Identifier: Apache-2.0
"""The bench's library refuses what it would measure wrongly."""

from stratalloc import simulate

simulate.load("64MiB")

# pylint: disable=wrong-import-position
import ctypes

import pytest
import stratalloc
import torch
from stratalloc.bench import library


def _operator():
    value, handles = ctypes.c_double(), ctypes.c_int()
    library.call("operator_ns", 0, 10, 1, ctypes.byref(value),
                 ctypes.byref(handles))
    return value.value, handles.value


def test_the_order_of_things():
    stratalloc.enable(host_budget="16MiB", disk_budget=0)
    torch.cuda.init()
    library.load(torch)
    with pytest.raises(RuntimeError, match="behind the op guard.*load the "
                       "bench's library before stratalloc.enable"):
        _operator()


def test_what_it_cannot_do_is_an_error():
    with pytest.raises(RuntimeError, match="one or two threads"):
        library.call("pairs", 0, 512, 1, 3, ctypes.byref(ctypes.c_double()))
    assert library.scopes_ns(1000) > 0
