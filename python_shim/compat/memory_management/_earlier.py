# SPDX-License-Identifier: Apache-2.0
"""Uses of a tensor that began before it was watched (spilled.py).

An operator that another thread runs may hold its tensor by a borrowed reference
alone, which no count of torch's shows. But that thread's frame holds Python's
object meanwhile. So such a use is ruled out for a tensor that nothing but
containers holds, or once every other thread is elsewhere in its program. (Of an
operator that calls back into Python, as apply_() does, that is not seen.)

Thread-safety: under the caller's lock. Fails: never.
"""

import gc
import sys
import threading

import torch

from stratalloc.compat.memory_management import workers


def none_of(tensors, modules):
    """[no other thread can be in an operator on it] of each tensor, and where
    the other threads are.

    Args:
      tensors: a list; nobody takes them out of it meanwhile.
      modules: whose dicts of parameters and buffers are known to hold them.
    """
    threads = _threads()
    if not threads:
        return [True] * len(tensors), threads
    return _held_by_containers(tensors, modules), threads


def still(threads):
    """Those that have not moved since: {thread: where it is}."""
    now = _threads()
    return {one: where for one, where in threads.items()
            if now.get(one) == where}


def _threads():
    mine = threading.get_ident()
    return {one: (id(frame), frame.f_lasti)
            for one, frame in sys._current_frames().items()
            if one != mine and not _is_worker(frame)}


def _is_worker(frame):
    """A manager's own thread calls no operator on what is not watched."""
    while frame is not None:
        if frame.f_globals is vars(workers):
            return True
        frame = frame.f_back
    return False


def _held_by_containers(tensors, modules):
    known = {id(held) for module in modules
             for held in (module._parameters, module._buffers)}
    tensors = [*tensors, torch.empty(0)]  # the last is what others are held to
    counted = {id(tensor): 0 for tensor in tensors}
    for holder in gc.get_referrers(*tensors):
        # Arguments of a call that runs are tuples, and values of dicts that
        # have strings as keys.
        if isinstance(holder, list):
            values = list(holder)
        elif isinstance(holder, dict):
            values = list(holder)
            if id(holder) in known:
                values += holder.values()
        else:
            continue
        for value in values:
            if id(value) in counted:
                counted[id(value)] += 1
        del values, holder
    value = None
    beyond = []
    for i in range(len(tensors)):
        beyond.append(sys.getrefcount(tensors[i]) - counted[id(tensors[i])])
    return [one == beyond[-1] for one in beyond[:-1]]
