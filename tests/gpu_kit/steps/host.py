# SPDX-License-Identifier: Apache-2.0
"""Host memory: what pinning costs, and what it can do at a device address.

The product's slabs (mapped, touched by threads, registered in steps of 1 GiB)
against cudaHostAlloc and registration alone, and whether io_uring takes either
as fixed buffers. Then memory located on the host (HOST_NUMA) in the place of
device memory: right for kernels, cuBLAS, atomics and a replayed graph? How
fast is it read? Can a file be read straight into it?
"""

import ctypes
import mmap
import os
import tempfile

from tests.gpu_kit import answer
from tests.gpu_kit import parts as product
from tests.gpu_kit.driver import DEVICE
from tests.gpu_kit.driver import HOST_NUMA
from tests.gpu_kit.driver import Driver
from tests.gpu_kit.driver import DriverError
from tests.gpu_kit.driver import View
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice

ASKED = ("What does pinning host memory cost, and does host memory mapped at a "
         "device address work?")


def run(said):
    pinned = said.must(said.child(pinning))
    # Host work is not on the virtual clock: these are this machine's.
    for name, seconds in pinned["seconds_per_gib"].items():
        said.figure(f"{name}, per GiB", seconds, "s")
    for name, taken in pinned["io_uring"].items():
        said.note(f"io_uring takes {name} as fixed buffers: {taken}")
    said.figure("registering alone, per GiB, by the device's clock",
                pinned["registering"], "s",
                said.card["pin_ns_per_gib"] / 1e9
                + pinned["calls_per_gib"]
                * said.call_us("cudaHostRegister") / 1e6)
    mapped = said.child(mapped_on_device)
    if "died" in mapped:
        said.fact("host memory can be mapped at a device address",
                  mapped["died"][-300:], True)
        return
    said.fact("host memory can be mapped at a device address",
              mapped.get("error", True), True)
    if "error" in mapped:
        return
    for name, right in mapped["right"].items():
        said.fact(f"{name} is right on it", right, True)
    rate = said.card["hbm_gb_per_s"] * said.card["memory_efficiency"]
    said.figure("reading device memory", mapped["device_rate"], "GB/s",
                mapped["bytes"] / (mapped["bytes"] / rate
                                   + said.card["kernel_ns"]))
    said.figure("reading it", mapped["host_rate"], "GB/s")
    said.note(f"a file read straight into it (O_DIRECT): {mapped['o_direct']}")
    said.note("tensor maps (TMA) are not tried: no library kernel that uses "
              "them can be told to")


def pinning(said):
    """A child: seconds per GiB, by this machine's clock."""
    device = OnDevice(said, "native")
    torch = device.torch
    torch.ones(1, device="cuda")
    parts = product.Parts()
    parts.open()
    size = GIB // 4 if said.simulated else 4 * GIB
    per_gib = GIB / size
    found = {}
    made, ended = parts.slab(size)
    found["a slab of the host tier made"] = made * per_gib
    found["and ended"] = ended * per_gib

    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = (ctypes.c_char * size).from_buffer(memory)
    address = ctypes.addressof(view)
    ctypes.memset(address, 1, size)
    made, ended = parts.register(address, size)
    found["touched memory registered"] = made * per_gib
    found["and unregistered"] = ended * per_gib
    device.use_clock_of_calls(parts)
    registering, _ = parts.register(address, size)
    parts.register(address, size)
    torch.cuda.cudart().cudaHostRegister(address, size, 0)
    rings = {"registered memory": _io_uring_takes(address, 16 * MIB)}
    torch.cuda.cudart().cudaHostUnregister(address)

    library = ctypes.CDLL("libcudart.so.13")
    pointer, seconds = ctypes.c_void_p(), []
    with _wall(seconds):
        status = library.cudaHostAlloc(
            ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_uint(0))
    if status:
        raise RuntimeError(f"cudaHostAlloc answers {status}")
    found["cudaHostAlloc"] = seconds[0] * per_gib
    rings["memory of cudaHostAlloc"] = _io_uring_takes(
        pointer.value, 16 * MIB)
    with _wall(seconds):
        library.cudaFreeHost(pointer)
    found["cudaFreeHost"] = seconds[1] * per_gib
    return {"seconds_per_gib": found, "io_uring": rings,
            "registering": registering * per_gib, "calls_per_gib": per_gib}


class _wall:
    """Adds the seconds of a block, by this machine's clock, to a list."""

    def __init__(self, found):
        self._found = found

    def __enter__(self):
        import time

        self._time = time.perf_counter
        self._began = self._time()

    def __exit__(self, *_):
        self._found.append(self._time() - self._began)


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _io_uring_takes(address, size):
    """Can this memory be a registered buffer of io_uring?"""
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = (ctypes.c_char * 120)()
    ring = libc.syscall(425, 4, ctypes.byref(parameters))
    if ring < 0:
        return "io_uring_setup: " + os.strerror(ctypes.get_errno())
    vector = _Vector(address, size)
    status = libc.syscall(427, ring, 0, ctypes.byref(vector), 1)
    said = "yes" if status == 0 else os.strerror(ctypes.get_errno())
    os.close(ring)
    return said


def mapped_on_device(said):
    """A child: device memory, then host memory, at one address."""
    device = OnDevice(said, "native")
    torch = device.torch
    torch.ones(1, device="cuda")
    driver = Driver()
    size = 16 * MIB if said.simulated else 256 * MIB
    count, side = size // 4, 512 if said.simulated else 2048
    address = driver.reserve(size)
    there = driver.create(size)
    driver.map(address, size, there)
    driver.set_access(address, size)
    tensor = torch.as_tensor(View(address, count), device="cuda")
    tensor.copy_(torch.arange(count, device="cuda") % 100)
    eye = torch.eye(side, device="cuda")

    def product_sum():
        square = tensor[:side * side].view(side, side)
        return (square @ eye).double().sum().item()

    expected = tensor.sum(dtype=torch.float64).item(), product_sum()
    output = torch.empty_like(tensor)
    torch.mul(tensor, 2., out=output)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(tensor, 2., out=output)
    found = {"bytes": size, "device_rate": _read_rate(device, tensor)}
    try:
        host = driver.create(size, HOST_NUMA, 0)
        _take_place(driver, torch, address, size, host)
    except DriverError as error:
        return {"error": str(error)}
    right = {
        "a kernel": tensor.sum(dtype=torch.float64).item() == expected[0],
        "a matrix product of cuBLAS": product_sum() == expected[1],
    }
    output.zero_()
    graph.replay()
    torch.cuda.synchronize()
    right["a graph captured before"] = (
        output.sum(dtype=torch.float64).item() == 2 * expected[0])
    adds = 1 << 16
    before = tensor[:8].double().sum().item()
    tensor.index_add_(0, torch.arange(adds, device="cuda") % 8,
                      torch.ones(adds, device="cuda"))
    right["an atomic addition"] = (
        tensor[:8].double().sum().item() == before + adds)
    found.update(right=right, host_rate=_read_rate(device, tensor),
                 o_direct=_o_direct(said, address, 4 * MIB))
    torch.cuda.synchronize()
    return found


def _take_place(driver, torch, address, size, host):
    """The bytes move to `host`, which is then mapped where they were."""
    both = (DEVICE, 0), (HOST_NUMA, 0)
    other = driver.reserve(size)
    driver.map(other, size, host)
    driver.set_access(other, size, *both)
    driver.copy(other, address, size)
    torch.cuda.synchronize()
    driver.unmap(other, size)
    driver.free(other, size)
    driver.unmap(address, size)
    driver.map(address, size, host)
    driver.set_access(address, size, *both)


def _read_rate(device, tensor):
    """GB/s of reading a tensor of floats and adding it up."""
    torch = device.torch
    tensor.sum()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    device.keep_busy(1)
    start.record()
    for _ in range(10):
        tensor.sum()
    end.record()
    end.synchronize()
    return 10 * tensor.numel() * 4 / (start.elapsed_time(end) / 1e3) / 1e9


def _o_direct(said, address, size):
    """Reads a file straight into the mapping; what came, or the error."""
    if said.simulated:
        return "not tried: device addresses of the simulated device cannot be "\
            "read by the host"
    folder = os.environ.get("TMPDIR", tempfile.gettempdir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            pattern = os.urandom(4096) * (size // 4096)
            file.write(pattern)
            file.flush()
            os.fsync(file.fileno())
            descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
            try:
                target = (ctypes.c_char * size).from_address(address)
                got = os.preadv(descriptor, [target], 0)
                right = bytes(target) == pattern
                return f"{got} of {size} bytes, right: {right}"
            finally:
                os.close(descriptor)
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    answer.main(run, ASKED)
