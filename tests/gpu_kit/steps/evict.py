# SPDX-License-Identifier: Apache-2.0
"""evict() and restore() of 16 GiB: the first time, and from then on.

The first eviction makes the host tier (mapped, touched, registered); later ones
find it. Between two of them everything is written, or nothing is: what was not
written leaves without a copy. Bytes are the allocator's own report, contents
are compared byte for byte through sums that fold every word.
"""

from tests.gpu_kit import answer
from tests.gpu_kit import on_device
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import median

ASKED = ("How long do evict() and restore() of 16 GiB take, first and steady, "
         "dirty and clean, against pinned copies of the same bytes?")
_ROUNDS = 3


def run(said):
    size = 256 * MIB if said.simulated else 16 * GIB
    device = OnDevice(said, host_budget=size + size // 8 + GIB,
                      disk_budget=0)
    torch = device.torch
    import stratalloc

    each = 8 * MIB if said.simulated else 64 * MIB
    model = torch.nn.Module()
    model.parts = torch.nn.ParameterList(
        torch.nn.Parameter(torch.empty(each // 4, dtype=torch.float32,
                                       device="cuda"), requires_grad=False)
        for _ in range(size // each))
    torch.manual_seed(2)
    for part in model.parts:
        part.view(torch.int32).random_(1 << 30)  # so that no sum wraps
    tensors = list(model.parts)
    addresses = [on_device.address(tensor) for tensor in tensors]
    wanted = _sums(tensors)
    trip = _Trip(said, device, stratalloc, model, size)

    first = trip.there_and_back("first")
    steady = []
    for _ in range(_ROUNDS):
        for tensor in tensors:
            tensor.view(torch.int32).add_(1)
        wanted = [total + each // 4 for total in wanted]
        steady.append(trip.there_and_back("steady, written"))
    clean = [trip.there_and_back("steady, unchanged") for _ in range(_ROUNDS)]
    said.promise("every byte is back", _sums(tensors) == wanted)
    said.promise("no address has changed",
                 [on_device.address(tensor) for tensor in tensors]
                 == addresses)

    copies = pinned_copies(device, size)
    said.figure("pinned copy to the host", copies["down"] / GIB, "GiB/s",
                said.card["pcie_down_gb_per_s"] * 1e9 / GIB)
    said.figure("pinned copy to the device", copies["up"] / GIB, "GiB/s",
                said.card["pcie_up_gb_per_s"] * 1e9 / GIB)
    for way in ("out", "in"):
        name = {"out": "evict", "in": "restore"}[way]
        card = said.card[{"out": "pcie_down_gb_per_s",
                          "in": "pcie_up_gb_per_s"}[way]] * 1e9
        said.figure(f"{name}, first", first[way], "s")
        rate = size / median([trip_[way] for trip_ in steady])
        said.figure(f"{name}, steady", rate / GIB, "GiB/s", card / GIB)
        said.figure(f"{name}, unchanged",
                    median([trip_[way] for trip_ in clean]), "s")
        said.bar(f"{name} against a pinned copy",
                 rate / copies[{"out": "down", "in": "up"}[way]],
                 at_least=.95)
    said.figure("making the host tier, first eviction beyond a steady one",
                (first["out"] - median([each["out"] for each in steady]))
                / (size / GIB), "s per GiB")
    report = stratalloc.report()
    said.note(f"handles: {report['handles']}, tiers: {report['tiers']}")
    said.promise("the simulated device has no complaint",
                 not device.complaints(), f"{device.complaints()}")


class _Trip:
    """Everything out, everything in, with what the report says of it."""

    def __init__(self, said, device, stratalloc, model, size):
        self._said, self._device = said, device
        self._stratalloc, self._model, self._size = stratalloc, model, size
        self._rows = []

    def there_and_back(self, name):
        row = {"trip": name}
        for way, function in (("out", self._stratalloc.evict),
                              ("in", self._stratalloc.restore)):
            before, seconds = on_device.moved(), []
            with self._device.seconds(seconds):
                answered = function(self._model)
            row[way] = seconds[0]
            row[f"{way}_bytes"] = on_device.moved()[way] - before[way]
            row[f"{way}_gib_per_s"] = round(
                self._size / max(seconds[0], 1e-9) / GIB, 3)
            self._said.promise(
                f"{name}: all of it moves {way}, and the report says so",
                answered == row[f"{way}_bytes"] == self._size,
                f"{answered} answered, {row[f'{way}_bytes']} reported, "
                f"{self._size} asked for")
        self._rows.append({key: round(value, 6) if isinstance(value, float)
                           else value for key, value in row.items()})
        self._said.table("trips", self._rows)
        return row


def _sums(tensors):
    """Every 32-bit word counts; a sum of int64, so nothing is rounded."""
    import torch

    return [tensor.view(torch.int32).sum(dtype=torch.int64).item()
            for tensor in tensors]


def pinned_copies(device, size):
    """Bytes per second of cudaMemcpyAsync between pinned memory and device."""
    torch = device.torch
    size = min(size // 4, GIB)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    found = {}
    for way, to, source in (("down", host, there), ("up", there, host)):
        to.copy_(source, non_blocking=True)
        seconds = []
        for _ in range(_ROUNDS):
            with device.seconds(seconds):
                to.copy_(source, non_blocking=True)
        found[way] = size / median(seconds)
    return found


if __name__ == "__main__":
    answer.main(run, ASKED)
