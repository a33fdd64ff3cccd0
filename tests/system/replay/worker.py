# SPDX-License-Identifier: Apache-2.0
"""One process that replays one trace under one allocator, on the simulated
device, and prints what it measured as JSON.

    python tests/system/replay/worker.py TRACE ALLOCATOR ROUNDS

ALLOCATOR: native, expandable, stratalloc (tiering off) or tiered (on). Without
rounds nothing is timed. Peaks come from a run of their own. Beside processor
time stands what the card's driver would have taken for the calls that were
made, on the virtual clock: the same on any machine.
"""

import ctypes
import json
import os
import sys

sys.path.insert(0, os.getcwd())

from tests.simulator.cudasim.operator_bridge import simulated
from tests.system.replay import trace

_CALLS = (
    "cudaMalloc", "cudaFree", "cuMemCreate", "cuMemRelease", "cuMemMap",
    "cuMemUnmap", "cuMemSetAccess", "cuMemAddressReserve", "cudaEventRecord",
    "cudaDeviceSynchronize", "cudaStreamSynchronize",
)


class _Peaks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in (
        "reserved", "allocated", "reserved_at_allocated",
        "allocated_at_reserved")]


# Tiering as a user has it, but for what depends on the machine: budgets decide
# how large handles are.
_CONF = {"stratalloc": "tiering:off",
         "tiered": "tiering:on,host_budget:1GiB,disk_budget:0"}


def _library():
    for place in (os.environ.get("REPLAY_LIBRARY", ""),
                  "tests/system/replay/libreplay.so"):
        if place and os.path.exists(place):
            return ctypes.CDLL(os.path.abspath(place))
    raise FileNotFoundError("build //tests/system/replay:libreplay.so")


def _calls(cuda):
    cuda.cudasim_calls.restype = ctypes.c_long
    return {name: cuda.cudasim_calls(name.encode()) for name in _CALLS}


def main(path, allocator, rounds):
    recorded = trace.read(path)
    is_ours = allocator in _CONF
    os.environ["SIMULATED_ALLOCATOR"] = "stratalloc" if is_ours else "native"
    if allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if is_ours:
        os.environ["STRATALLOC_CONF"] = _CONF[allocator]
    device = simulated.load(
        memory=None, CUDASIM_CARD="h200", CUDASIM_PHANTOM="1",
        CUDASIM_NUMBERS="off")
    import torch

    torch.cuda.init()
    ours = False
    if is_ours:
        import stratalloc

        ours = stratalloc.is_enabled()
    library = _library()
    operations = recorded.operations

    def run(peaks):
        taken, text = ctypes.c_double(), ctypes.create_string_buffer(2000)
        if library.replay_run(
                ctypes.c_void_p(operations.ctypes.data),
                ctypes.c_uint64(len(operations)),
                ctypes.c_uint64(recorded.blocks), recorded.streams,
                peaks, ctypes.byref(taken), text, len(text)):
            raise RuntimeError(text.value.decode())
        return taken.value / len(operations)

    device.cuda.cudasim_virtual_total.restype = ctypes.c_double

    def card():
        """Nanoseconds per operation, in all, of the card's calls."""
        return device.cuda.cudasim_virtual_total(b"calls_ns") / len(operations)

    before, card_before = _calls(device.cuda), card()
    peaks = _Peaks()
    run(ctypes.byref(peaks))
    after, card_after = _calls(device.cuda), card()
    answer = {name: getattr(peaks, name) for name, _ in _Peaks._fields_}
    answer["calls"] = {name: after[name] - before[name] for name in _CALLS
                       if after[name] != before[name]}
    answer["ns"] = [run(None) for _ in range(rounds)]
    # What the timed rounds still asked of the driver, in all.
    later = _calls(device.cuda)
    answer["round_calls"] = sum(later.values()) - sum(after.values())
    answer["card_ns"] = {"first": card_after - card_before}
    if rounds:
        answer["card_ns"]["later"] = (card() - card_after) / rounds
    answer["ours"] = ours
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
