# SPDX-License-Identifier: Apache-2.0
"""Ends of managers: by cleanup(), by being freed, and in a forked child.

Everything that a manager did to its modules is undone, and what is in its files
comes back. Modules and tensors that another manager has, too, stay that one's.

Thread-safety: let_go() under wrapper.lock; the others any thread.
"""

import logging
import os
import threading
import weakref

from stratalloc.compat.memory_management import spilled
from stratalloc.compat.memory_management import wrapper

_log = logging.getLogger("stratalloc")
managers = weakref.WeakSet()  # all that are alive


def stop(running):
    while running:
        running.pop().stop()


def let_go(records, strategies, ended):
    """Everything that a manager did to its modules is undone; on a thread of
    the program's, since memory may get another address."""
    mine = [tensor for record in list(records.values())
            for tensor in record.tensors()]
    for tensor in mine:
        spilled.restore(tensor)
    others = [record for manager in list(managers) if manager is not ended
              for record in manager.records()]
    theirs = {id(tensor) for record in others for tensor in record.tensors()}
    strategies.clear([one for one in mine if id(one) not in theirs])
    _make_plain(records, mine)
    for record in others:  # a tied tensor has one rule, theirs from now on
        tensors = record.tensors()
        manager = record.manager()
        if manager is not None and not {*map(id, mine)}.isdisjoint(
                map(id, tensors)):
            manager._obey(tensors)
    strategies.close()


def forget(records, strategies):
    """A manager was freed, on whatever thread and whenever. Never raises."""
    mine = [tensor for record in list(records.values())
            for tensor in record.tensors()]
    try:
        for tensor in mine:
            spilled.restore(tensor)
        others = {id(tensor) for manager in list(managers)
                  for record in list(manager._records.values())
                  for tensor in record.tensors()}
        strategies.clear_tiers([one for one in mine if id(one) not in others])
    except Exception as error:  # pylint: disable=broad-except
        # Its bytes are where they were, and come when it is used.
        if os.getpid() == _pid:
            _log.warning("stratalloc: memory_management: of a manager that is "
                         "gone: %s", error)
    strategies.close()
    _make_plain(records, mine)


def _make_plain(records, tensors):
    for record in list(records.values()):
        module = record.module()
        if module is not None:
            wrapper.unwrap(module)
    records.clear()
    for tensor in tensors:
        if not spilled.is_away(tensor):
            spilled.unwatch(tensor)


_pid = os.getpid()  # of the process whose files can be read


def _after_fork():
    for manager in list(managers):
        manager._workers.clear()  # the parent's
        manager._fetcher = None
        manager._counted = threading.Lock()
        manager.strategies.after_fork()


os.register_at_fork(after_in_child=_after_fork)
