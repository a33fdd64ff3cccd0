# SPDX-License-Identifier: Apache-2.0
"""What a full card refuses, and how much address space there is.

The card is filled with handles until the driver makes none. Then: may the last
one be mapped and granted (page tables take memory too)? May a kernel be
launched for the first time (its code takes memory)? And what of a call that is
refused is left over?
"""

from tests.gpu_kit import answer
from tests.gpu_kit.driver import Driver
from tests.gpu_kit.driver import DriverError
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice

ASKED = "What does a full card refuse, and how much address space is there?"
_SIZES = (GIB, 32 * MIB, 2 * MIB)
_RESERVATIONS, _EACH = 8, 9 << 40


def run(said):
    found = said.must(said.child(fill, "kernel"))
    said.figure("free when the driver makes no 2 MiB more", found["free"],
                "bytes", 0, floor=2 * MIB)
    said.fact("the last handle can be mapped and granted", found["granted"],
              "ok")
    said.fact("a kernel's first launch on the full card", found["launch"],
              "ok")
    # In a process of its own: the simulated card counts a library's code that
    # it had no room for.
    said.fact("the first matrix product on the full card", said.must(
        said.child(fill, "product"))["launch"], "out of memory")
    # What libraries and code took meanwhile was not in handles.
    said.promise("all of it can be given back",
                 found["free_after"] >= found["made"],
                 f"{found['free_after']} bytes free, {found['made']} released")
    space = said.must(said.child(address_space))
    said.figure("address space in pieces of 9 TiB", space["pieces"], "pieces")


def fill(said, what):
    """A child: handles until there are no more, then a first launch."""
    device = OnDevice(said, "native")
    torch = device.torch
    driver = Driver()
    x = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    handles, last, made = [], None, 0
    for size in _SIZES:
        while True:
            try:
                handles.append(driver.create(size))
            except DriverError:
                break
            last = size
            made += size
    free = torch.cuda.mem_get_info()[0]
    address = driver.reserve(last)
    driver.map(address, last, handles[-1])
    granted = _words(lambda: driver.set_access(address, last))
    launch = _words(x.frac_ if what == "kernel" else lambda: x @ x)
    driver.unmap(address, last)
    driver.free(address, last)
    for handle in handles:
        driver.release(handle)
    torch.cuda.synchronize()
    free_after = torch.cuda.mem_get_info()[0]
    return {"free": free, "granted": granted, "launch": launch,
            "made": made, "free_after": free_after}


def _words(function):
    try:
        function()
    except DriverError as error:
        return str(error)
    except RuntimeError as error:  # torch's, of many lines
        text = str(error)
        return ("out of memory" if "out of memory" in text
                else text.splitlines()[0][:200])
    return "ok"


def address_space(said):
    """A child: reserves what eight large cards would be given."""
    device = OnDevice(said, "native")
    device.torch.ones(1, device="cuda")
    driver, made = Driver(), []
    try:
        while len(made) < _RESERVATIONS:
            made.append(driver.reserve(_EACH))
    except DriverError:
        pass
    for address in made:
        driver.free(address, _EACH)
    return {"pieces": len(made)}


if __name__ == "__main__":
    answer.main(run, ASKED)
