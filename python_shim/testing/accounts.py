# SPDX-License-Identifier: Apache-2.0
"""What tests on the simulated device ask of the accounts.

    from python_shim.testing.accounts import rows, sums, total  # noqa: F401

`sums` is a fixture that is used by itself: the import is all.
"""

import gc
import os
import threading

import pytest
import torch

import stratalloc
from stratalloc._native import core as _core, _scopes


def rows(owner, at="now"):
    """{(path below owner, category): bytes}; tests name their own roots, since
    rows outlive a test."""
    found = {}
    for row in stratalloc.holders(at=at).rows:
        if row.name == owner or row.name.startswith((owner + ".",
                                                     owner + "/")):
            key = (row.name[len(owner) + 1:], row.category)
            found[key] = found.get(key, 0) + row.bytes
    return found


def total(owner, category, at="now"):
    return sum(size for (_, what), size in rows(owner, at).items()
               if what == category)


def add_up():
    """The rows are what torch says, now and at the peak."""
    gc.collect()
    torch.cuda.synchronize()
    for device in range(torch.cuda.device_count()):
        _core.check_invariants(device)
    now = stratalloc.holders()
    on_device = sum(row.bytes for row in now.rows if row.tier == "device")
    assert on_device == torch.cuda.memory_allocated()
    assert now.total == stratalloc.stats()["live"]
    assert stratalloc.peak().total == torch.cuda.max_memory_allocated()
    for by in ("category", "tensor", "site"):
        found = stratalloc.holders(by=by)
        assert found.total == now.total == sum(row.bytes for row in found.rows)


@pytest.fixture(autouse=True)
def sums():
    """Whatever a test did, rows add up and no frame is left on its thread."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    yield
    assert _scopes.current() == (0, 0, 0)
    add_up()


def on_thread(work):
    """Runs on a thread of its own; raises what it raised.

    When this returns the thread is gone, and not just its Python: what the core
    does at a thread's end is done.
    """
    raised = []

    def run():
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        os.sched_yield()
    if raised:
        raise raised[0]


def after_backward():
    """The frame on top where autograd's device thread is between graphs."""
    seen = []
    leaf = torch.ones(1, device="cuda", requires_grad=True)
    leaf.register_hook(lambda grad: (
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: seen.append(_scopes.current()))))
    (leaf * 2).sum().backward()
    (frame,) = seen
    return frame
