# SPDX-License-Identifier: Apache-2.0
"""From PyTorch's memory history to the operations of a trace.

History does not say which stream used a block, only that its free had to wait
(free_completed not right after free_requested). Such a block gets a
record_stream just before its free, for a stream that is not its own: native
looks at a block's streams no earlier than that.
"""

import io
import pickle

import numpy

from tests.system.replay import trace


class _Unpickler(pickle.Unpickler):
    """Containers, numbers and texts; no class and no function by name."""

    def find_class(self, module, name):
        raise trace.TraceError(
            f"the snapshot names {module}.{name}: it is refused, because a "
            "pickle that names code can run it")

    def persistent_load(self, pid):
        raise trace.TraceError("the snapshot refers to objects outside it")


def load_snapshot(path):
    """A _dump_snapshot pickle, as plain containers; TraceError if it is none."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        snapshot = _Unpickler(io.BytesIO(content)).load()
    except trace.TraceError:
        raise
    except Exception as error:  # a hostile pickle raises what it likes
        raise trace.TraceError(f"not a snapshot: {error}") from error
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list) or not all(
            isinstance(entries, list) for entries in traces):
        raise trace.TraceError("not a snapshot: it has no device_traces")
    return snapshot


class Translator:
    """Takes the entries of one device in order; operations() at the end."""

    def __init__(self):
        self._rows = []
        self._live = {}  # address: block
        self._waiting = {}  # address: (row of its free, block, stream)
        self._deferred = {}  # row of a free: (block, stream)
        self._blocks = 0
        self._streams = {0: 0}

    def _stream(self, number):
        index = self._streams.setdefault(number, len(self._streams))
        if index > 254:
            raise trace.TraceError("more than 254 streams")
        return index

    def empty_cache(self):
        self._rows.append((trace.EMPTY_CACHE, 0, 0, 0, 0))

    def add(self, entries):
        previous = None
        try:
            for entry in entries:
                action, address = entry["action"], entry["addr"]
                if action == "alloc":
                    stream = self._stream(entry["stream"])
                    self._live[address] = self._blocks
                    if int(entry["size"]) > 0:
                        self._rows.append((trace.MALLOC, stream, 0,
                                           self._blocks, int(entry["size"])))
                        self._blocks += 1
                elif action == "free_requested" and address in self._live:
                    block = self._live.pop(address)
                    stream = self._stream(entry["stream"])
                    self._waiting[address] = (len(self._rows), block, stream)
                    self._rows.append((trace.FREE, stream, 0, block, 0))
                elif action == "free_completed" and address in self._waiting:
                    row, block, stream = self._waiting.pop(address)
                    if previous != ("free_requested", address):
                        self._deferred[row] = (block, stream)
                previous = (action, address)
        except (KeyError, TypeError, ValueError) as error:
            raise trace.TraceError(
                f"an entry of the history makes no sense: {error!r}") from error

    def operations(self):
        rows = []
        # Asked for and never completed: still waiting at the end.
        deferred = dict(self._deferred)
        for row, block, stream in self._waiting.values():
            deferred[row] = (block, stream)
        if deferred and len(self._streams) == 1:
            self._stream(-1)
        for index, row in enumerate(self._rows):
            if index in deferred:
                block, stream = deferred[index]
                other = next(i for i in range(len(self._streams)) if i != stream)
                rows.append((trace.RECORD_STREAM, other, 0, block, 0))
            rows.append(row)
        return numpy.array(rows, trace.OPERATION)


def snapshot_operations(snapshot, device=0):
    """The operations in a snapshot's history of one device."""
    if device >= len(snapshot["device_traces"]):
        raise trace.TraceError(f"the snapshot has no device {device}")
    translator = Translator()
    translator.add(snapshot["device_traces"][device])
    return translator.operations()
