# SPDX-License-Identifier: Apache-2.0
"""Shares tensors of the device with a process that it starts, and back.

    shared.py spawn|forkserver

Prints as JSON what each side got, or the error of the process that received
first.
"""

import ctypes
import json
import sys
from multiprocessing import connection

import torch
import torch.multiprocessing as mp

from stratalloc._native import core

_COUNT = 1 << 20


def answer(received, sent):
    """Sends what it got, and then a tensor and a handle of its own."""
    try:
        sent.put({"child_got": received.get().sum().item()})
    except RuntimeError as error:
        sent.put({"error": str(error)})
        return
    tensor = torch.full((_COUNT,), 2.0, device="cuda")
    sent.put(tensor)
    shared = torch.full((_COUNT,), 3.0, device="cuda").untyped_storage()
    sent.put(shared._share_cuda_()[1])
    received.get()  # until it is killed


def error_of(handle):
    """Of opening memory by what travels between processes; "" if it opened."""
    address, token = ctypes.c_void_p(), ctypes.c_uint64()
    error = core.Error()
    opened = core.lib().stratalloc_ipc_open(
        0, handle, ctypes.c_uint64(len(handle)), ctypes.byref(address),
        ctypes.byref(token), ctypes.byref(error))
    if opened == 0:
        core.lib().stratalloc_ipc_close(token, ctypes.byref(error))
        return ""
    return error.message.decode()


def _next(queue, child):
    ready = connection.wait([queue._reader, child.sentinel])
    if queue._reader not in ready:
        sys.exit(f"the child ended: {child.exitcode}")
    return queue.get()


def main():
    context = mp.get_context(sys.argv[1])
    to_child, to_parent = context.Queue(), context.Queue()
    child = context.Process(target=answer, args=(to_child, to_parent))
    child.start()
    tensor = torch.ones(_COUNT, device="cuda")
    to_child.put(tensor)
    facts = _next(to_parent, child)
    if "error" not in facts:
        theirs, handle = _next(to_parent, child), _next(to_parent, child)
        facts["parent_got"] = theirs.sum().item()
        facts["while_it_lives"] = error_of(handle)
        child.kill()
        child.join()
        facts["parent_still_has"] = theirs.sum().item()
        facts["after_its_end"] = error_of(handle)
        facts["child"] = child.pid
    child.join()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
