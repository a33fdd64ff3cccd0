# SPDX-License-Identifier: Apache-2.0
"""One context and one tensor, under PyTorch's allocator and under ours.

Each in a process of its own: what a context, the first tensor and the first
kernels take of the card and of the time; what opening the device for our
allocator adds; which handles the driver makes, by the product's own probe.
"""

import time

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.parts import Parts

ASKED = ("What do a context, a first tensor and first kernels take of the card "
         "and of the time, and which handles does the driver make?")


def run(said):
    card = said.card
    handles = said.must(said.child(kind_of_handles))
    said.fact("the driver maps memory (cuMemCreate, map, access)",
              handles["virtual_memory"], True)
    said.fact("handles can be exported as file descriptors",
              handles["exportable"], bool(card["exports_handles"]))
    said.fact("handles are made for GPUDirect RDMA", handles["rdma"],
              bool(card["rdma_handles"] and card["says_rdma_handles"]))
    said.figure("granularity", handles["granularity"], "bytes", 2 * MIB)
    said.figure("opening a device", handles["open_ns"] / 1e6, "ms")
    said.figure("probing its handles", handles["probe_ns"] / 1e3, "us")
    if handles["why"]:
        said.note(handles["why"])

    found = {name: said.must(said.child(tensor, name))
             for name in ("native", "stratalloc")}
    said.table("memory of the card, bytes", [
        {"after": stage, **{name: found[name]["memory"][stage]
                            for name in found}}
        for stage in found["native"]["memory"]])
    said.table("time, ms", [
        {"after": stage, **{name: found[name]["ms"][stage] for name in found}}
        for stage in found["native"]["ms"]])
    native, ours = found["native"]["memory"], found["stratalloc"]["memory"]
    # What the simulated card's context takes includes a driver's reserve.
    said.figure("a context", native["context"], "bytes",
                card["context_bytes"], floor=64 * MIB)
    said.figure("code of the first kernel",
                native["first kernel"] - native["first tensor"], "bytes", 0,
                floor=16 * MIB)
    said.figure("first matrix product (cuBLAS)",
                native["first product"] - native["first kernel"], "bytes",
                card["cublas_workspace_bytes"] + card["cublas_library_bytes"],
                floor=32 * MIB)
    said.figure("ours beside PyTorch's, after all of it",
                ours["first product"] - native["first product"], "bytes")
    said.promise("the one tensor is right under both",
                 found["native"]["sum"] == found["stratalloc"]["sum"] == 8.0,
                 f"{found['native']['sum']}, {found['stratalloc']['sum']}")
    said.promise("the device takes part in tiering",
                 not found["stratalloc"]["why_no_tiering"],
                 found["stratalloc"]["why_no_tiering"])
    said.promise("only device 0 has a context",
                 found["stratalloc"]["contexts"] == [0],
                 f"{found['stratalloc']['contexts']}")
    said.figure("large handle", found["stratalloc"]["large_handle"], "bytes",
                32 * MIB)


def kind_of_handles(said):
    """A child: the product's probe on a fresh context."""
    device = OnDevice(said, "native")
    parts = Parts()
    device.use_clock_of_calls(parts)
    device.torch.cuda.init()
    return parts.open()


def tensor(said, allocator):
    """A child: the first things of a process, one by one."""
    device = OnDevice(said, allocator)
    torch = device.torch
    memory, ms = {}, {}
    began = time.perf_counter()

    def note(stage):
        torch.cuda.synchronize()
        ms[stage] = round(1e3 * (time.perf_counter() - began), 1)
        free, total = torch.cuda.mem_get_info()
        memory[stage] = total - free

    torch.cuda.init()
    note("context")
    x = torch.empty(8, device="cuda")
    note("first tensor")
    x.fill_(0).add_(1)
    note("first kernel")
    a = torch.ones(64, 64, device="cuda")
    _ = a @ a
    note("first product")
    found = {"memory": memory, "ms": ms, "sum": x.sum().item()}
    if allocator == "stratalloc":
        import stratalloc

        report = stratalloc.report()
        found["why_no_tiering"] = report["why_no_tiering"]
        found["large_handle"] = report["handles"]["large_handle_bytes"]
        found["contexts"] = contexts(torch.cuda.device_count())
    return found


def contexts(devices):
    """The devices whose primary context is active; asking makes none."""
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    flags, active, found = ctypes.c_uint(), ctypes.c_int(), []
    for index in range(devices):
        driver.cuDevicePrimaryCtxGetState(
            ctypes.c_int(index), ctypes.byref(flags), ctypes.byref(active))
        if active.value:
            found.append(index)
    return found


if __name__ == "__main__":
    answer.main(run, ASKED)
