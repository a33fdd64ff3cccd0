# SPDX-License-Identifier: Apache-2.0
"""Optimizers' steps keep the parameters they change in memory (spilled.py).

A step is many operators, each of which would bring its parameters back by
itself. So as long as a manager spills host memory, torch's hooks around every
step say which parameters are in use together: those that require a gradient,
whether they have one yet or get it from the step's closure. A step that raises
has no end for torch; its parameters stay until the optimizer's next step, or
its own end.

Thread-safety: any thread.
"""

import contextlib
import os
import threading
import weakref

from stratalloc.compat.memory_management import broadcasts
from stratalloc.compat.memory_management import spilled

_under_way = weakref.WeakKeyDictionary()  # optimizer -> ExitStack of its step


def _before(optimizer, _args, _kwargs):
    _after(optimizer)
    found = [parameter for group in optimizer.param_groups
             for parameter in group["params"] if parameter.requires_grad]
    uses = contextlib.ExitStack()
    uses.enter_context(spilled.in_use(found))
    with steps.lock:
        _under_way[optimizer] = uses  # whose end is that of the uses, too


def _after(optimizer, _args=None, _kwargs=None):
    with steps.lock:
        uses = _under_way.pop(optimizer, None)
    if uses is not None:
        uses.close()


class Steps:
    """The two hooks and those of broadcasts.py, while a manager needs them."""

    def __init__(self):
        self.lock = threading.RLock()
        self._users = 0
        self._handles = []

    def begin(self):
        from torch.optim import optimizer

        with self.lock:
            self._users += 1
            if not self._handles:
                self._handles = [
                    optimizer.register_optimizer_step_pre_hook(_before),
                    optimizer.register_optimizer_step_post_hook(_after)]
                broadcasts.begin()

    def end(self):
        with self.lock:
            self._users -= 1
            if self._users == 0:
                while self._handles:
                    self._handles.pop().remove()
                broadcasts.end()


steps = Steps()


def _after_fork():
    steps.lock = threading.RLock()  # a thread that is gone may have held it


os.register_at_fork(after_in_child=_after_fork)
