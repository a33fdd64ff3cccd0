# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can answer; one JSON object on standard output.

    python3 measure.py [--quick]

Each item is measured on its own and reports `error` instead of numbers when it
cannot be: a machine that refuses one thing still answers the others.

1. reserve, create, map, set access, unmap, release: what they cost at several
   sizes, with and without recycling the handle, idle and under a kernel; does
   mapping range B stall kernels on range A?
2. Host memory (HOST_NUMA) mapped where device memory was: right for kernels,
   cuBLAS, atomics and a replayed graph? How fast is it read? O_DIRECT into it?
3. cudaHostAlloc against mmap, touch and register; does io_uring take both?
4. A captured graph whose operands were unmapped and mapped again.
"""

import argparse
import ctypes
import json
import mmap
import os
import statistics
import tempfile
import threading
import time

from driver import DEVICE, HOST_NUMA, Driver, DriverError, View

MIB = 1 << 20
GIB = 1 << 30


class Clock:
    """Microseconds of each named step, over many rounds."""

    def __init__(self):
        self._times = {}

    def __call__(self, name, function, *args):
        began = time.perf_counter_ns()
        result = function(*args)
        took = (time.perf_counter_ns() - began) / 1000
        self._times.setdefault(name, []).append(took)
        return result

    def medians(self):
        return {
            name: round(statistics.median(times), 2)
            for name, times in self._times.items()
        }


def _cycle(driver, size, rounds, recycle, while_busy):
    clock = Clock()
    address = driver.reserve(size)
    kept = driver.create(size) if recycle else None
    for _ in range(rounds):
        while_busy()
        handle = kept or clock("create", driver.create, size)
        clock("map", driver.map, address, size, handle)
        clock("set_access", driver.set_access, address, size)
        clock("unmap", driver.unmap, address, size)
        if kept is None:
            clock("release", driver.release, handle)
    if kept:
        driver.release(kept)
    driver.free(address, size)
    return clock.medians()


def vmm_costs(torch, driver, quick):
    rounds = 5 if quick else 50
    result = {"unit": "microseconds, median", "granularity":
              driver.granularity()}

    def busy():
        torch.cuda._sleep(20_000_000)  # about 10 ms

    for size in (2, 20, 32, 64, 256):
        row = {}
        for recycle in (False, True):
            name = "recycled" if recycle else "created"
            row[name + "_idle"] = _cycle(
                driver, size * MIB, rounds, recycle, lambda: None
            )
            row[name + "_under_kernel"] = _cycle(
                driver, size * MIB, min(rounds, 10), recycle, busy
            )
            torch.cuda.synchronize()
        result[f"{size}MiB"] = row
    clock = Clock()
    for _ in range(rounds):
        address = clock("reserve", driver.reserve, GIB)
        clock("free", driver.free, address, GIB)
    result["reserve_1GiB"] = clock.medians()
    result["stall"] = _stall(torch, driver, quick)
    return result


def _stall(torch, driver, quick):
    """Milliseconds of kernels on A, alone and while B is mapped and unmapped."""
    data = torch.ones(64 * MIB // 4, device="cuda")
    count = 50 if quick else 500

    def kernels():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            data.mul_(1.0)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    kernels()
    alone = statistics.median(kernels() for _ in range(5))
    stop, cycles, failure = threading.Event(), [0], []
    size = 32 * MIB
    address, handle = driver.reserve(size), driver.create(size)

    def remap():
        try:
            torch.cuda.current_stream()  # a context on this thread
            torch.ones(1, device="cuda")
            while not stop.is_set():
                driver.map(address, size, handle)
                driver.set_access(address, size)
                driver.unmap(address, size)
                cycles[0] += 1
        except DriverError as error:
            failure.append(str(error))

    thread = threading.Thread(target=remap)
    thread.start()
    beside = statistics.median(kernels() for _ in range(5))
    stop.set()
    thread.join()
    driver.release(handle)
    driver.free(address, size)
    return {"kernels": count, "alone_ms": round(alone, 3),
            "while_remapping_ms": round(beside, 3),
            "remaps_meanwhile": cycles[0], "error": failure or None}


def host_mapping(torch, driver, quick):
    size = 64 * MIB if quick else 256 * MIB
    count = size // 4
    address = driver.reserve(size)
    device = driver.create(size)
    driver.map(address, size, device)
    driver.set_access(address, size)
    tensor = torch.as_tensor(View(address, count), device="cuda")
    tensor.copy_(torch.arange(count, device="cuda") % 1000)
    side = 4096 if not quick else 2048
    expected = {
        "sum": tensor.sum(dtype=torch.float64).item(),
        "product": (tensor[:side * side].view(side, side)
                    @ torch.eye(side, device="cuda")).double().sum().item(),
    }
    graph, output = torch.cuda.CUDAGraph(), torch.empty_like(tensor)
    torch.mul(tensor, 2.0, out=output)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.mul(tensor, 2.0, out=output)
    device_rate = _read_rate(torch, tensor)

    host = driver.create(size, HOST_NUMA, 0)
    other = driver.reserve(size)
    driver.map(other, size, host)
    driver.set_access(other, size, (DEVICE, 0), (HOST_NUMA, 0))
    driver.copy(other, address, size)
    torch.cuda.synchronize()
    driver.unmap(other, size)
    driver.free(other, size)
    driver.unmap(address, size)
    driver.map(address, size, host)
    driver.set_access(address, size, (DEVICE, 0), (HOST_NUMA, 0))

    result = {
        "kernel": tensor.sum(dtype=torch.float64).item() == expected["sum"],
        "cublas": (tensor[:side * side].view(side, side)
                   @ torch.eye(side, device="cuda")).double().sum().item()
        == expected["product"],
        "tma": "not tried",
        "device_read_gb_s": device_rate,
        "host_read_gb_s": _read_rate(torch, tensor),
    }
    graph.replay()
    torch.cuda.synchronize()
    result["graph_replay"] = (
        output.sum(dtype=torch.float64).item() == 2 * expected["sum"]
    )
    ones = torch.ones(1 << 20, device="cuda")
    before = tensor[:8].double().sum().item()
    tensor.index_add_(
        0, torch.arange(1 << 20, device="cuda") % 8, ones
    )
    result["atomics"] = (
        tensor[:8].double().sum().item() == before + (1 << 20)
    )
    result["o_direct"] = _o_direct(address, 16 * MIB)
    torch.cuda.synchronize()
    driver.unmap(address, size)
    driver.release(host)
    driver.release(device)
    driver.free(address, size)
    return result


def _read_rate(torch, tensor):
    tensor.sum()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        tensor.sum()
    end.record()
    end.synchronize()
    seconds = start.elapsed_time(end) / 1000
    return round(10 * tensor.numel() * 4 / seconds / 1e9, 1)


def _o_direct(address, size):
    """Reads a file straight into the mapping; what came, or the error."""
    folder = os.environ.get("STRATALLOC_KIT_DISK", tempfile.gettempdir())
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
                right = bytes(target[:4096]) == pattern[:4096]
                return {"bytes": got, "right": right}
            finally:
                os.close(descriptor)
    except OSError as error:
        return {"error": str(error)}


def host_allocation(torch, driver, quick):
    del driver
    runtime = torch.cuda.cudart()
    library = ctypes.CDLL("libcudart.so.13")
    size = GIB // 4 if quick else 4 * GIB
    per_gib = GIB / size
    result = {"unit": "seconds per GiB", "bytes": size}

    pointer = ctypes.c_void_p()
    began = time.perf_counter()
    status = library.cudaHostAlloc(
        ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_uint(0)
    )
    if status:
        raise DriverError(f"cudaHostAlloc: {status}")
    result["host_alloc"] = round((time.perf_counter() - began) * per_gib, 4)
    result["host_alloc_io_uring"] = _io_uring_takes(pointer.value, 16 * MIB)
    library.cudaFreeHost(pointer)

    began = time.perf_counter()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = (ctypes.c_char * size).from_buffer(memory)
    address = ctypes.addressof(view)
    ctypes.memset(address, 1, size)
    result["map_and_touch"] = round((time.perf_counter() - began) * per_gib, 4)
    began = time.perf_counter()
    status = int(runtime.cudaHostRegister(address, size, 0))
    result["register"] = round((time.perf_counter() - began) * per_gib, 4)
    result["register_status"] = status
    result["registered_io_uring"] = _io_uring_takes(address, 16 * MIB)
    runtime.cudaHostUnregister(address)
    return result


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
    answer = True if status == 0 else os.strerror(ctypes.get_errno())
    os.close(ring)
    return answer


def graph_across_remap(torch, driver, quick):
    del quick
    size = driver.granularity() * 4
    count = size // 4
    address = driver.reserve(size)
    first, second = driver.create(size), driver.create(size)
    driver.map(address, size, first)
    driver.set_access(address, size)
    tensor = torch.as_tensor(View(address, count), device="cuda")
    tensor.fill_(3.0)
    product, copied = torch.empty_like(tensor), torch.empty_like(tensor)
    saved = torch.empty(count, pin_memory=True)

    def work():
        torch.mul(tensor, 2.0, out=product)  # kernel
        copied.copy_(tensor, non_blocking=True)  # memcpy
        product[: count // 2].zero_()  # memset

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    answers = {}
    for name, handle in (("other_handle", second), ("same_handle", first)):
        saved.copy_(tensor)
        torch.cuda.synchronize()
        driver.unmap(address, size)
        driver.map(address, size, handle)
        driver.set_access(address, size)
        tensor.copy_(saved)
        tensor.add_(1.0)
        value = tensor[0].item()
        graph.replay()
        torch.cuda.synchronize()
        answers[name] = bool(
            (copied == value).all()
            and (product[: count // 2] == 0).all()
            and (product[count // 2:] == 2 * value).all()
        )
    del tensor
    driver.unmap(address, size)
    driver.release(first)
    driver.release(second)
    driver.free(address, size)
    return answers


ITEMS = {
    "1_virtual_memory_costs": vmm_costs,
    "2_host_memory_mapped": host_mapping,
    "3_host_allocation": host_allocation,
    "4_graph_across_remap": graph_across_remap,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--items", nargs="*", default=list(ITEMS))
    args = parser.parse_args()
    import torch

    torch.cuda.init()
    torch.ones(1, device="cuda")
    driver = Driver()
    results = {}
    for name in args.items:
        began = time.perf_counter()
        try:
            results[name] = ITEMS[name](torch, driver, args.quick)
        except Exception as error:  # reported, the next item still runs
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        results[name]["seconds"] = round(time.perf_counter() - began, 2)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
