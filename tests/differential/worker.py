# SPDX-License-Identifier: Apache-2.0
"""Runs programs under one allocator, on the simulated device.

Reads one program per line ({"steps", "with_classes"}), answers one line: a list with what each step
showed, or {"dirty": why} if a program left something behind. Between two
programs nothing is allocated, cached, pooled or counted; that is checked, not
hoped for.
"""

import gc
import json
import os
import re
import sys
import threading

from tests.cudasim.operator_bridge import simulated
from tests.differential.program import DEVICE

DEVICE_CONTROL = simulated.load(memory=DEVICE)

# pylint: disable=wrong-import-position
import torch

# fmt: off
# native's names: what must be equal, and what has a bound (compare.py).
EQUAL = ("requested_bytes", "allocation", "active")
BOUNDED = ("allocated_bytes", "active_bytes", "reserved_bytes")
KINDS = ("all", "small_pool", "large_pool")
CREATIONS = {"native": "cudaMalloc", "stratalloc": "cuMemCreate"}
# fmt: on
NUMBERS = re.compile(r"(0x)?[0-9][0-9a-f.]*( (bytes|[KMG]iB))?")
# Advice that is wrong where every segment is expandable; see compare.py.
HINT = re.compile(
    r" If reserved but unallocated memory is large try [^.]*\. "
    r"| with [^ ]* [^ ]* allocated in private pools \(e\.g\., CUDA Graphs\),"
)


def text_of(error):
    """An exception's first line without numbers, and without the hint."""
    text = str(error).split("\n", maxsplit=1)[0].split("Exception raised")[0]
    text = NUMBERS.sub("N", HINT.sub(" ", text + " "))
    return f"{type(error).__name__}: {' '.join(text.split())}"


class Run:
    """One program's tensors, pools and graphs."""

    def __init__(self):
        self.streams = STREAMS
        self.tensors = {}  # slot: (tensor, stream)
        self.recorded = set()
        self.raw = {}
        self.pools = {}
        self.graphs = {}  # (graph, input, outputs)
        self.routed = 0

    # Each step returns what is to be equal, besides the statistics.

    def alloc(self, slot, size, stream):
        if self.free(slot) == "kept":
            return "kept"
        with torch.cuda.stream(self.streams[stream]):
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            tensor.fill_((slot * 37 + size) % 251)
        self.tensors[slot] = (tensor, stream)
        return list(tensor.shape)

    def free(self, slot):
        # While a pool is routed native looks at no event; what was recorded
        # waits until then under it, and not under ours (pytorch 175015).
        if self.routed and slot in self.recorded:
            return "kept"
        self.recorded.discard(slot)
        return self.tensors.pop(slot, None) is not None

    def write(self, slot, value):
        if slot not in self.tensors:
            return None
        tensor, stream = self.tensors[slot]
        with torch.cuda.stream(self.streams[stream]):
            tensor.fill_(value)
        return self.value(tensor)

    def resize(self, slot, size):
        if slot not in self.tensors or (self.routed and slot in self.recorded):
            return None
        tensor, stream = self.tensors[slot]
        with torch.cuda.stream(self.streams[stream]):
            before, place = tensor.numel(), tensor.data_ptr()
            tensor.resize_(size)
            if tensor.data_ptr() != place:
                self.recorded.discard(slot)
            kept = self.value(tensor[: min(before, size)])
            tensor.fill_((slot + size) % 251)
        return kept

    def value(self, tensor):
        """Contents, sampled where the tensor is large."""
        step = max(1, tensor.numel() // 4096)
        return int(tensor[::step].cpu().long().sum()) if len(tensor) else 0

    def record(self, slot, stream):
        if slot not in self.tensors or self.routed:
            return None
        tensor, own = self.tensors[slot]
        self.streams[stream].wait_stream(self.streams[own])
        with torch.cuda.stream(self.streams[stream]):
            tensor.add_(1)
        self.streams[own].wait_stream(self.streams[stream])
        tensor.record_stream(self.streams[stream])
        self.recorded.add(slot)
        return self.value(tensor)

    def wait(self, one, two):
        self.streams[one].wait_stream(self.streams[two])

    def synchronise(self):
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")

    def empty_cache(self):
        torch.cuda.empty_cache()

    def too_large(self, size):
        torch.empty(size, dtype=torch.uint8, device="cuda")

    def limited(self, fraction, size):
        torch.cuda.set_per_process_memory_fraction(fraction)
        try:
            self.too_large(size)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def fault(self, slot, size, stream):
        """One creation of memory fails; a second try succeeds."""
        name = CREATIONS[simulated.allocator()]
        DEVICE_CONTROL.cuda.cudasim_fail(name.encode(), 1, 2, 0)
        try:
            return self.alloc(slot, size, stream)
        finally:
            DEVICE_CONTROL.cuda.cudasim_clear_faults()
            # native gave its whole cache back before the second try
            torch.cuda.empty_cache()

    def raw_alloc(self, slot, size, stream):
        self.raw_free(slot)
        self.raw[slot] = torch.cuda.caching_allocator_alloc(
            size, stream=self.streams[stream]
        )

    def raw_free(self, slot):
        pointer = self.raw.pop(slot, None)
        if pointer is not None:
            torch.cuda.caching_allocator_delete(pointer)
        return pointer is not None

    def reset_peak(self):
        torch.cuda.reset_peak_memory_stats()

    def reset_accumulated(self):
        torch.cuda.reset_accumulated_memory_stats()

    def snapshot(self):
        stats = torch._C._cuda_memoryStats(0)
        segments = torch.cuda.memory_snapshot()
        blocks = [block for s in segments for block in s["blocks"]]

        def total(key):
            return sum(segment[key] for segment in segments)

        assert total("total_size") == stats["reserved_bytes"]["all"]["current"]
        assert total("allocated_size") == (
            stats["allocated_bytes"]["all"]["current"]
        )
        assert total("active_size") == stats["active_bytes"]["all"]["current"]
        for segment in segments:
            assert sum(b["size"] for b in segment["blocks"]) == (
                segment["total_size"]
            )
        live = [b for b in blocks if b["state"] != "inactive"]
        return sorted(b["requested_size"] for b in live)

    def pool(self, pool, use_on_oom, no_split):
        if pool in self.pools:
            return None
        self.pools[pool] = torch.cuda.MemPool(
            use_on_oom=bool(use_on_oom), no_split=bool(no_split)
        )
        return self.pools[pool].use_count()

    def in_pool(self, pool, steps):
        if pool not in self.pools:
            return None
        # Nothing may wait for events now: see free().
        self.synchronise()
        self.routed += 1
        try:
            with torch.cuda.use_mem_pool(self.pools[pool]):
                counts = [self.pools[pool].use_count()]
                shown = [self.step(step) for step in steps]
        finally:
            self.routed -= 1
        return [counts, shown, self.pools[pool].use_count()]

    def drop_pool(self, pool):
        # Its end waits for events: of the pool under native, of all under ours.
        self.synchronise()
        return self.pools.pop(pool, None) is not None

    def capture(self, graph, pool, sizes):
        if graph in self.graphs or (pool >= 0 and pool not in self.pools):
            return None
        self.synchronise()
        made = torch.cuda.CUDAGraph()
        source = torch.ones(64, dtype=torch.int64, device="cuda")
        outputs = []
        own = {"pool": self.pools[pool].id} if pool >= 0 else {}
        self.routed += 1
        try:
            with torch.cuda.graph(made, **own):
                for i, size in enumerate(sizes):
                    scratch = torch.ones(size, dtype=torch.uint8, device="cuda")
                    outputs.append(source * (i + 2) + scratch[:1])
                    if i % 2:
                        del scratch
        finally:
            self.routed -= 1
        self.graphs[graph] = (made, source, outputs)
        return len(outputs)

    def replay(self, graph, value):
        if graph not in self.graphs:
            return None
        made, source, outputs = self.graphs[graph]
        source.fill_(value)
        made.replay()
        return [int(each.sum()) for each in outputs]

    def drop_graph(self, graph):
        return self.graphs.pop(graph, None) is not None

    def thread(self, steps):
        shown = []
        other = threading.Thread(
            target=lambda: shown.extend(self.step(step) for step in steps)
        )
        other.start()
        other.join()
        return shown

    def step(self, step):
        """[what was returned or raised, statistics]."""
        name, *arguments = step
        method = {"raw": self.raw_alloc}.get(name) or getattr(self, name)
        try:
            shown = method(*arguments)
        except (RuntimeError, AssertionError) as error:
            shown = text_of(error)
        return [shown, statistics()]

    def close(self):
        contents = {
            slot: self.value(tensor)
            for slot, (tensor, _) in sorted(self.tensors.items())
        }
        for slot in list(self.raw):
            self.raw_free(slot)
        self.tensors.clear()
        self.synchronise()
        self.graphs.clear()
        self.pools.clear()
        return contents


def statistics():
    stats = torch._C._cuda_memoryStats(0)
    equal = {
        f"{name}.{kind}.{key}": value
        for name in EQUAL
        for kind in KINDS
        for key, value in stats[name][kind].items()
    }
    equal["num_ooms"] = stats["num_ooms"]
    bounded = {
        f"{name}.{kind}": stats[name][kind]["current"]
        for name in BOUNDED
        for kind in KINDS
    }
    return [equal, bounded]


def classes():
    """How many (stream, pool) of each kind have memory now."""
    seen = {
        (s["stream"], tuple(s["segment_pool_id"]), s["segment_type"])
        for s in torch.cuda.memory_snapshot()
    }
    kinds = [kind for _, _, kind in seen]
    return {"small_pool": kinds.count("small"),
            "large_pool": kinds.count("large")}  # fmt: skip


def clean():
    """Leaves nothing; returns what was left all the same, or None."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.empty(1, device="cuda")  # events that waited are looked at
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    left = [
        f"{key} = {value}"
        for part in statistics()
        for key, value in part.items()
        if value != 0
    ]
    if torch.cuda.get_per_process_memory_fraction() != 1.0:
        left.append("a fraction")
    if torch.cuda.memory_snapshot():
        left.append("a segment")
    left += DEVICE_CONTROL.violations()
    return ", ".join(left) or None


def execute(steps, with_classes):
    run = Run()
    count = classes if with_classes else lambda: None
    log = [run.step(step) + [count()] for step in steps]
    log.append([run.close(), statistics(), count()])
    del run
    left = clean()
    return {"log": log, **({"dirty": left} if left else {})}


STREAMS = []


def main():
    # The protocol has the pipe for itself; everything else goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.cuda.init()
    STREAMS.append(torch.cuda.default_stream())
    STREAMS.extend(torch.cuda.Stream() for _ in range(3))
    torch.ones(1, device="cuda").add_(1).item()
    left = clean()
    gc.freeze()  # a collection looks at what programs make, not at torch
    print(json.dumps({"ready": simulated.allocator(), "dirty": left}),
          file=answers, flush=True)  # fmt: skip
    for line in sys.stdin:
        print(json.dumps(execute(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
