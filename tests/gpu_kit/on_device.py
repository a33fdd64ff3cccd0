# SPDX-License-Identifier: Apache-2.0
"""The device under a step: a GPU, or the simulated card with its own clock.

On the simulated device every time is virtual: what the card's figures make of
the run. So a step says there what the simulated card says, and on a GPU what
the GPU says, with the same code.
"""

import contextlib
import ctypes
import time

MIB = 1 << 20
GIB = 1 << 30
CARD = "h200"  # what steps run on without a GPU, and compare with


class OnDevice:
    """torch on the device, under our allocator or its own, and a clock."""

    def __init__(self, answer, allocator="stratalloc", **settings):
        self.simulated = answer.simulated
        if self.simulated:
            from stratalloc import simulate

            simulate.load("card", card=CARD)
            self._simulate = simulate
        import torch

        self.torch = torch
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU; --device sim needs none")
        if allocator == "stratalloc":
            import stratalloc

            stratalloc.enable(**settings)

    def now_ns(self):
        """All work that was waited for is over by now."""
        if not self.simulated:
            return time.perf_counter_ns()
        return int(self._simulate.virtual_time()["seconds"] * 1e9)

    def use_clock_of_calls(self, parts):
        """Times of calls: the calling thread's, as the card charges them."""
        if self.simulated:
            parts.use_clock(self._simulate.driver().cudasim_virtual_now_ns)

    @contextlib.contextmanager
    def seconds(self, found):
        """Adds the seconds of a block, and of the work it began, to a list."""
        self.torch.cuda.synchronize()
        began = self.now_ns()
        yield
        self.torch.cuda.synchronize()
        found.append((self.now_ns() - began) / 1e9)

    def keep_busy(self, milliseconds):
        """One kernel of about that time; an event behind it."""
        self.torch.cuda._sleep(int(milliseconds * self._cycles_per_ms))
        event = self.torch.cuda.Event()
        event.record()
        return event

    @property
    def _cycles_per_ms(self):
        if not hasattr(self, "_cycles"):
            self._cycles = self._calibrated()
        return self._cycles

    def _calibrated(self):
        """Cycles of torch's spinning kernel per millisecond on this card."""
        torch, cycles = self.torch, 100_000_000
        torch.cuda._sleep(1000)  # loads the kernel
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return cycles / start.elapsed_time(end)

    def background(self):
        """This thread's calls are not the program's (virtual clock only)."""
        if self.simulated:
            self._simulate.driver().cudasim_set_background(ctypes.c_int(1))

    def complaints(self):
        """What the simulated device has to complain of; [] on a GPU."""
        if not self.simulated:
            return []
        found = self._simulate.counters()
        return [f"{found[name]} {name}" for name in (
            "launches_without_twin", "refused_calls", "violations")
            if found[name]] + self._simulate.violations()[:3]


def moved(index=0):
    """Bytes that left the device and came back so far."""
    import stratalloc

    tiers = stratalloc.report(index).get("tiers", {})
    return {"out": tiers.get("bytes_evicted", 0),
            "in": tiers.get("bytes_restored", 0)}


def address(tensor):
    """Where it lies. Tensor.data_ptr() would give the address away, and what
    was given away stays on the device."""
    return tensor.untyped_storage().data_ptr()


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
