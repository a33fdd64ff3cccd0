# SPDX-License-Identifier: Apache-2.0
"""Records the allocations of a torch program, or reads them in a snapshot.

    python -m tests.system.replay.record --out FILE SCRIPT [ARGS...]
    python -m tests.system.replay.record --out FILE --snapshot DUMP.pickle

The program runs unchanged; history is on without contexts. It is taken out and
cleared at every torch.cuda.empty_cache, which it does not mention itself.
"""

import argparse
import os
import runpy
import sys

from tests.system.replay import history, trace

# 10^6 entries are some hundred MB of dicts at the end.
_MOST_ENTRIES = 4_000_000


class Recorder:
    """Records between start() and finish(), on the current device."""

    def __init__(self, torch):
        self._torch = torch
        self._translator = history.Translator()
        self._device = 0
        self._empty_cache = torch.cuda.memory.empty_cache

    def start(self):
        torch = self._torch
        torch.cuda.init()
        self._device = torch.cuda.current_device()
        torch.cuda.memory._record_memory_history(
            context=None, max_entries=_MOST_ENTRIES, clear_history=True)
        torch.cuda.memory.empty_cache = torch.cuda.empty_cache = self._empty

    def _take(self):
        memory = self._torch.cuda.memory
        entries = memory._snapshot()["device_traces"][self._device]
        if len(entries) >= _MOST_ENTRIES:
            raise trace.TraceError(
                f"{len(entries)} entries: the history's beginning is lost")
        self._translator.add(entries)
        memory._record_memory_history(
            context=None, max_entries=_MOST_ENTRIES, clear_history=True)

    def _empty(self):
        self._take()
        self._translator.empty_cache()
        self._empty_cache()

    def finish(self):
        torch = self._torch
        self._take()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory.empty_cache = self._empty_cache
        torch.cuda.empty_cache = self._empty_cache
        return self._translator.operations()


def main():
    parser = argparse.ArgumentParser(prog="tests.system.replay.record")
    parser.add_argument("--out", required=True)
    parser.add_argument("--snapshot")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.snapshot:
        operations = history.snapshot_operations(
            history.load_snapshot(args.snapshot))
        trace.write(args.out, {"source": os.path.basename(args.snapshot),
                               "card": "", "torch": ""}, operations)
        return
    if not args.program:
        parser.error("a program or --snapshot is needed")
    import torch

    recorder = Recorder(torch)
    recorder.start()
    sys.argv = args.program
    sys.path.insert(0, os.path.dirname(os.path.abspath(args.program[0])))
    runpy.run_path(args.program[0], run_name="__main__")
    operations = recorder.finish()
    trace.write(args.out, {
        "source": os.path.basename(args.program[0]),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }, operations)
    print(f"{args.out}: {len(operations)} operations, "
          f"{os.path.getsize(args.out)} bytes")


if __name__ == "__main__":
    main()
