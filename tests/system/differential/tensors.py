# SPDX-License-Identifier: Apache-2.0
"""The steps with tensors: allocated, freed, recorded, refused.

Each step returns what is to be equal, besides the statistics.
"""

import random
import threading

import torch

from tests.system.differential.shown import layout, statistics

# Where memory comes from; native has one call for what are three of ours.
CALLS = {
    "native": dict.fromkeys(("create", "map", "access"), "cudaMalloc"),
    "stratalloc": {
        "create": "cuMemCreate",
        "map": "cuMemMap",
        "access": "cuMemSetAccess",
    },
}
_NO_MEMORY = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
# What ends the wait for an event besides the program's turns.
_WAITS = tuple(
    name.encode()
    for name in ("cudaFree", "cudaDeviceSynchronize", "cudaStreamSynchronize",
                 "cudaEventSynchronize", "cuCtxSynchronize",
                 "cuStreamSynchronize", "cuEventSynchronize")
)  # fmt: skip
# Of a stream's operations, how many run before a step: mostly none, since an
# operator of the simulated device runs what came before it anyway.
_TURNS = (0,) * 28 + (1, 1, 2, 5)


class Tensors:
    """One program's tensors."""

    def __init__(self, streams, control, allocator, case, look=None):
        """`case`: compare.Case's; `look`: at which count the layout is shown,
        or "every"."""
        self.look = look
        self.case = case
        self.count = 0  # of what was counted so far
        self.turns_of_streams = (
            random.Random(case["seed"]) if case["mode"] == "async" else None
        )
        self.streams = streams
        self.control = control
        self.taken = {}  # device: bytes that another process holds
        if case["room"] is not None:
            self.squeeze(case["room"])
        self.waited = self.waits()  # when last synchronised
        self.freed = self.frees()  # when the cache was last emptied
        self.calls = CALLS[allocator]
        self.tensors = {}  # slot: (tensor, stream)
        self.recorded = set()
        self.raw = {}
        self.lends = False  # a pool was made that does
        self.routed = 0  # threads that use a pool, and captures
        # A thread that takes turns: the number of its stream.
        self.own = threading.local()

    def counted(self, without=None):
        """What is compared besides what a step returns."""
        number, self.count = self.count, self.count + 1
        shown = {"number": number, "statistics": statistics(without),
                 "waits": [now - then for now, then
                           in zip(self.waits(), self.waited)],
                 "frees": self.frees() - self.freed}  # fmt: skip
        if self.look in ("every", number):
            shown["layout"] = layout()
        return shown

    def waits(self):
        """How often something waited for the device, and how, in async mode."""
        if self.case["mode"] != "async":
            return []
        return list(map(self.control.cuda.cudasim_calls, _WAITS))

    def frees(self):
        """How often memory went back to the driver in whole segments."""
        return self.control.cuda.cudasim_calls(b"cudaFree")

    def run_streams(self):
        """In async mode work is done when the program's seed says so."""
        if self.turns_of_streams is None:
            return
        for stream in self.streams:
            turns = self.turns_of_streams.choice(_TURNS)
            if turns:
                self.control.cuda.cudasim_run_stream(stream.cuda_stream, turns)

    def squeeze(self, room):
        """Leaves so many bytes of each device; None: all of them."""
        for i in range(torch.cuda.device_count()):
            free = self.control.capacity(i) - self.control.used(i)
            self.taken[i] = 0 if room is None else max(0, free - room)
            self.control.cuda.cudasim_take_memory(i, self.taken[i])

    def of(self, stream):
        """The stream's number: a thread's own is -1."""
        return stream if stream >= 0 else self.own.stream

    def on(self, stream):
        return torch.cuda.stream(self.streams[stream])

    def alloc(self, slot, size, stream):
        if self.free(slot) == "kept":
            return "kept"
        if stream < 0:  # is current already
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            tensor.fill_((slot * 37 + size) % 251)
        else:
            with self.on(stream):
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                tensor.fill_((slot * 37 + size) % 251)
        self.tensors[slot] = (tensor, self.of(stream))
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
        with self.on(stream):
            tensor.fill_(value)
            return self.value(tensor)

    def resize(self, slot, size):
        if slot not in self.tensors or (self.routed and slot in self.recorded):
            return None
        tensor, stream = self.tensors[slot]
        with self.on(stream):
            before, place = tensor.numel(), tensor.data_ptr()
            try:
                tensor.resize_(size)
            except torch.OutOfMemoryError:
                # torch has given it its new sizes already, and no memory.
                del self.tensors[slot], tensor
                self.recorded.discard(slot)
                raise
            if tensor.data_ptr() != place:
                self.recorded.discard(slot)
            kept = self.value(tensor[: min(before, size)])
            tensor.fill_((slot + size) % 251)
        return kept

    def copy(self, to, source):
        if to not in self.tensors or source not in self.tensors:
            return None
        (target, own), (given, other) = self.tensors[to], self.tensors[source]
        size = min(len(target), len(given))
        self.wait(own, other)
        with self.on(own):
            target[:size].copy_(given[:size])
        self.wait(other, own)
        with self.on(own):
            return self.value(target)

    def value(self, tensor):
        """Contents, sampled where the tensor is large; as the current stream
        finds them, for which the host waits."""
        step = max(1, tensor.numel() // 4096)
        return int(tensor[::step].cpu().long().sum()) if len(tensor) else 0

    def record(self, slot, stream):
        if slot not in self.tensors:
            return None
        tensor, own = self.tensors[slot]
        self.wait(stream, own)
        # A stream of the other device may use it, but runs no kernel on it.
        if self.streams[stream].device == tensor.device:
            with self.on(stream):
                tensor.add_(1)
        self.wait(own, stream)
        tensor.record_stream(self.streams[stream])
        self.recorded.add(slot)
        if self.turns_of_streams is None:
            with self.on(own):  # which waits for the other; the current may not
                return self.value(tensor)
        # Whoever looked at it would find it done when it is freed. Many a
        # program drops such a tensor at once.
        del tensor
        return self.free(slot) if self.turns_of_streams.random() < 0.5 else None

    def wait(self, one, two):
        self.streams[one].wait_stream(self.streams[two])

    def synchronise(self):
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        self.waited = self.waits()
        for device in range(torch.cuda.device_count()):
            torch.empty(1, device=f"cuda:{device}")

    def empty_cache(self):
        torch.cuda.empty_cache()
        self.freed = self.frees()

    def too_large(self, size):
        if self.routed and self.lends:
            return None  # native may keep a pool's memory for good then
        torch.empty(size, dtype=torch.uint8, device="cuda")

    def limited(self, fraction, size):
        torch.cuda.set_per_process_memory_fraction(fraction)
        try:
            self.too_large(size)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def tight(self, fraction, size, stream):
        torch.cuda.set_per_process_memory_fraction(fraction)
        try:
            with self.on(stream):
                torch.empty(size, dtype=torch.uint8, device="cuda").fill_(1)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def fraction(self, fraction):
        torch.cuda.set_per_process_memory_fraction(fraction)
        return torch.cuda.get_per_process_memory_fraction()

    def rounding(self, divisions):
        torch._C._accelerator_setAllocatorSettings(
            f"roundup_power2_divisions:{divisions}"
        )

    def fault(self, slot, size, stream, call, nth):
        """The driver's nth call fails, if there is one; a second try does not.

        At most one try: while a pool is routed native makes no second one
        (pytorch 159674), so this is no step of a pool's.
        """
        self.fail(call, nth, forever=False)
        try:
            return self.alloc(slot, size, stream)
        finally:
            self.mend()
            # native gave its whole cache back before the second try
            torch.cuda.empty_cache()

    def starved(self, size, stream):
        """More than any segment that is in use has left."""
        torch.cuda.empty_cache()
        self.fail("create", 1, forever=True)
        try:
            with self.on(stream):
                torch.empty(size, dtype=torch.uint8, device="cuda")
        finally:
            self.mend()

    def mend(self):
        """Nothing fails any more, and as much of the device is taken."""
        self.control.cuda.cudasim_clear_faults()
        for device, size in self.taken.items():
            self.control.cuda.cudasim_take_memory(device, size)

    def fail(self, call, nth, forever):
        name = self.calls[call].encode()
        self.control.cuda.cudasim_fail(name, nth, _NO_MEMORY, int(forever))

    def raw_alloc(self, slot, size, stream):
        self.raw_free(slot)
        on = self.streams[stream]
        self.raw[slot] = torch.cuda.caching_allocator_alloc(
            size, device=on.device, stream=on
        )

    def raw_free(self, slot):
        pointer = self.raw.pop(slot, None)
        if pointer is not None:
            torch.cuda.caching_allocator_delete(pointer)
        return pointer is not None

    def reset_peak(self):
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)

    def reset_accumulated(self):
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_accumulated_memory_stats(device)

    def snapshot(self):
        """What is live: bytes, state, stream and pool. Sums must agree."""
        segments = torch.cuda.memory_snapshot()
        for device in range(torch.cuda.device_count()):
            stats = torch._C._cuda_memoryStats(device)
            for key, name in (("total_size", "reserved_bytes"),
                              ("allocated_size", "allocated_bytes"),
                              ("active_size", "active_bytes")):  # fmt: skip
                assert stats[name]["all"]["current"] == sum(
                    s[key] for s in segments if s["device"] == device
                )
        for segment in segments:
            assert sum(b["size"] for b in segment["blocks"]) == (
                segment["total_size"]
            )
        streams = {
            (stream.device.index, stream.cuda_stream): i
            for i, stream in enumerate(self.streams)
        }
        return sorted(
            # A stream of torch.cuda.graph's is none of the program's.
            [s["device"], streams.get((s["device"], s["stream"]), -1),
             self.name_of(tuple(s["segment_pool_id"])), s["segment_type"],
             b["requested_size"], b["state"]]
            for s in segments for b in s["blocks"] if b["state"] != "inactive"
        )  # fmt: skip

    def name_of(self, pool_id):
        """A pool's name that is the same under both."""
        return str(pool_id)

    def close(self):
        if self.taken:
            self.squeeze(None)
        contents = {}
        for slot, (tensor, stream) in sorted(self.tensors.items()):
            with self.on(stream):
                contents[slot] = self.value(tensor)
        for slot in list(self.raw):
            self.raw_free(slot)
        self.tensors.clear()
        self.fraction(1.0)
        self.rounding(1)
        return contents
