# SPDX-License-Identifier: Apache-2.0
"""Optimizers' steps keep the parameters they change in memory (spilled.py).

A step changes parameters in place, on the thread that trains, while a manager's
thread may look for what it can offload; no count shows that use. So as long as
a manager spills host memory, torch's hooks around every step say which
parameters are in use: those that have a gradient. A step that raises has no end
for torch; its parameters stay until the optimizer's next step, or its own end.

Thread-safety: begin() and end() under the caller's lock; the hooks run on the
threads that step.
"""

import contextlib
import weakref

from stratalloc.compat.memory_management import spilled

_under_way = weakref.WeakKeyDictionary()  # optimizer -> ExitStack of its step


def _before(optimizer, _args, _kwargs):
    _after(optimizer)
    found = [parameter for group in optimizer.param_groups
             for parameter in group["params"] if parameter.grad is not None]
    uses = contextlib.ExitStack()
    uses.enter_context(spilled.in_use(found))
    _under_way[optimizer] = uses  # whose end is that of the uses, too


def _after(optimizer, _args=None, _kwargs=None):
    uses = _under_way.pop(optimizer, None)
    if uses is not None:
        uses.close()


class Steps:
    """The two hooks, installed while somebody needs them."""

    def __init__(self):
        self._users = 0
        self._handles = []

    def begin(self):
        from torch.optim import optimizer

        self._users += 1
        if not self._handles:
            self._handles = [
                optimizer.register_optimizer_step_pre_hook(_before),
                optimizer.register_optimizer_step_post_hook(_after)]

    def end(self):
        self._users -= 1
        if self._users == 0:
            while self._handles:
                self._handles.pop().remove()


steps = Steps()
