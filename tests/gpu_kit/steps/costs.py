# SPDX-License-Identifier: Apache-2.0
"""What the product's handles cost: the matrix of sizes and counts.

A cell is a cycle of the product's own code (parts.h): reserve, make N handles,
map them side by side, grant access to the run, unmap the run, release; on an
idle device and under one kernel of 500 ms (200 with --quick). Three more
columns answer what the product chose: handles that are kept (recycled), a grant
and an unmap for each mapping, handles of no special kind.
"""

from tests.gpu_kit import answer
from tests.gpu_kit import parts as product
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import median

ASKED = ("What do create, map, set-access, unmap and release cost per mapping "
         "and per byte, and does any of them wait for a running kernel?")
SIZES = (2, 32, 128)  # MiB
COUNTS = (1, 8, 64, 512)
MORE_SIZES = (20, 64, 256)  # with the first two counts
KERNEL_MS = 500
QUICK_KERNEL_MS = 200
_CALLS = product.CALLS_IN_ORDER
_OF_CUDA = {"create": "cuMemCreate", "map": "cuMemMap",
            "access": "cuMemSetAccess", "unmap": "cuMemUnmap",
            "release": "cuMemRelease"}
_SPARE = 2 * GIB  # left to the driver and its page tables


def run(said):
    device = OnDevice(said, "native")
    parts = product.Parts()
    device.use_clock_of_calls(parts)
    device.torch.cuda.init()
    device.torch.ones(1, device="cuda")
    made = parts.open()
    said.note(f"handles: exportable {made['exportable']}, for RDMA "
              f"{made['rdma']}")
    matrix = Matrix(said, device, parts)
    for size in SIZES:
        for count in COUNTS:
            matrix.cell(size, count)
    for size in MORE_SIZES:
        for count in COUNTS[:2]:
            matrix.cell(size, count)
    matrix.conclude()


class Matrix:
    """The cells measured so far; each is filed as soon as it is."""

    def __init__(self, said, device, parts):
        self._said, self._device, self._parts = said, device, parts
        self._rows = {}
        self._not_ready = 0
        self._kernel_ms = QUICK_KERNEL_MS if said.quick else KERNEL_MS
        self._waiting = {}  # call -> the longest it took under a kernel, ms

    def cell(self, size, count):
        bytes_ = size * MIB * count
        free = self._parts.free_bytes()
        if bytes_ + _SPARE > free:
            self._said.note(f"{size} MiB x {count} left out: only "
                            f"{free / GIB:.1f} GiB of the card are free")
            return
        rounds = self._rounds(count)
        self._cycle(size, count, 1)  # what the driver does only once
        self._row("idle", size, count, rounds)
        self._busy_row(size, count, 1)
        if size in SIZES:
            self._row("kept handles", size, count, rounds, product.KEEP)
            self._row("each mapping by itself", size, count,
                      1 if count == COUNTS[-1] else rounds, product.EACH)
            self._row("plain handles", size, count, rounds, product.PLAIN)

    def _rounds(self, count):
        if self._said.quick or self._said.simulated:
            return 1  # a virtual clock says the same every time
        return {1: 30, 8: 15, 64: 5}.get(count, 3)

    def _cycle(self, size, count, rounds, flags=0):
        found = []
        for _ in range(rounds):
            times = self._parts.cycle(size * MIB, count, flags)
            self._not_ready += times.not_ready
            found.append(times)
        return found

    def _row(self, way, size, count, rounds, flags=0):
        found = self._cycle(size, count, rounds, flags)
        row = {"MiB": size, "mappings": count, "way": way}
        for call in product.Times.CALLS:
            row[call + "_us"] = round(
                median([getattr(times, call) for times in found]) / 1e3, 2)
        row["used_by_access"] = found[0].used_by_access
        self._file(row)

    def _busy_row(self, size, count, rounds):
        """Each kind of call in cycles of its own: the kernel begins just
        before it, so that what waits for a kernel waits for this one."""
        row = {"MiB": size, "mappings": count, "way": "under a kernel"}
        for number, call in enumerate(_CALLS):
            def begin(which, number=number):
                if which == number:
                    self._device.keep_busy(self._kernel_ms)

            self._parts.before(begin)
            times = []
            for _ in range(rounds):
                times += self._cycle(size, count, 1)
                self._device.torch.cuda.synchronize()
            self._parts.before()
            row[call + "_us"] = round(
                median([getattr(each, call) for each in times]) / 1e3, 2)
            # Beyond what the same calls took on the idle device.
            idle = self._us(call, size, count)
            more = (row[call + "_us"] - idle) / 1e3
            self._waiting[call] = max(self._waiting.get(call, 0), more)
        self._file(row)

    def _file(self, row):
        self._rows[row["MiB"], row["mappings"], row["way"]] = row
        self._said.table("matrix: microseconds of all calls of one kind",
                         list(self._rows.values()))

    def _us(self, call, size, count, way="idle"):
        return self._rows[size, count, way][call + "_us"]

    def conclude(self):
        said, card = self._said, self._said.call_us
        for call in ("create", "map", "release"):
            for size in SIZES:
                said.figure(f"{call} of one handle, {size} MiB",
                            self._us(call, size, 8) / 8, "us",
                            self._modelled(call, size))
        for call in ("access", "unmap"):
            said.figure(f"{call} of one mapping, 2 MiB",
                        self._us(call, 2, 1), "us", self._modelled(call, 2))
            most = max(count for size, count, _ in self._rows if size == 2)
            base, wide = self._us(call, 2, 8), self._us(call, 2, most)
            said.figure(f"{call}: each further mapping of a run",
                        (wide - base) / (most - 8), "us",
                        self._modelled(call, 2) - card(_OF_CUDA[call]),
                        floor=.5)
            said.figure(f"{call}: each further GiB of a run",
                        (self._us(call, 128, 8) - self._us(call, 2, 8))
                        / (126 * 8 / 1024), "us", 0, floor=5)
            said.figure(
                f"{call}: a run of 64 of 2 MiB, 64 calls against one",
                self._us(call, 2, 64, "each mapping by itself")
                / max(self._us(call, 2, 64), 1e-3), "times as long",
                64 * self._modelled(call, 2) / self._modelled(call, 2, 64))
        kept = self._rows[32, 8, "kept handles"]
        whole = self._rows[32, 8, "idle"]
        said.figure("kept handles against new ones, 32 MiB x 8",
                    _sum(kept) / max(_sum(whole), 1e-3), "of the time",
                    self._share_kept(8))
        plain = self._rows[32, 8, "plain handles"]
        said.figure("plain handles against the product's, 32 MiB x 8",
                    _sum(plain) / max(_sum(whole), 1e-3), "of the time", 1)
        for call, name in (("reserve", "cuMemAddressReserve"),
                           ("free", "cuMemAddressFree")):
            said.figure(f"{call} of addresses, 256 MiB",
                        self._us(call, 32, 8), "us", card(name))
        most = max((size * count, size, count)
                   for size, count, way in self._rows if way == "idle")
        row = self._rows[(*most[1:], "idle")]
        said.figure("memory of the card that page tables take, per GiB mapped",
                    row["used_by_access"] / (most[0] / 1024), "bytes", 0,
                    floor=64 << 10)
        for call, more in self._waiting.items():
            said.fact(f"{call} waits for a running kernel",
                      more > self._kernel_ms / 2, False)
            said.figure(f"{call}: longest under a kernel beyond idle", more,
                        "ms", 0, floor=5)
        said.fact("set-access has answered not ready (600)",
                  self._not_ready > 0, False)
        said.figure("answers of not ready", self._not_ready, "calls")

    def _modelled(self, call, size, count=1):
        """Microseconds on the simulated card: a call, and what it does."""
        card = self._said.card
        more = {
            "create": card["create_ns_per_gib"] * size / 1024,
            "access": card["grant_ns"] * count,
            "unmap": card["unmap_ns"] * count,
        }.get(call, 0)
        return self._said.call_us(_OF_CUDA[call]) + more / 1e3

    def _share_kept(self, count):
        kept = (count * self._modelled("map", 32)
                + self._modelled("access", 32, count)
                + self._modelled("unmap", 32, count))
        return kept / (kept + count * (self._modelled("create", 32)
                                       + self._modelled("release", 32)))


def _sum(row):
    return sum(row[call + "_us"] for call in _CALLS)


if __name__ == "__main__":
    answer.main(run, ASKED)
