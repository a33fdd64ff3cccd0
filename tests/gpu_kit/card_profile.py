# SPDX-License-Identifier: Apache-2.0
"""Measures a card and writes a profile for the simulated device.

    python3 -m tests.gpu_kit.card_profile --out FILE [--quick]
        [--device sim [--card NAME] [--profile FILE]]

The file is what CUDASIM_PROFILE and `stratalloc run --profile` take: with it
the simulated device keeps the time this card would have taken. Times on the
device come from events, times of calls from the host's clock; each figure is
the median of several rounds. Bandwidths and peaks are what was reached, so the
efficiencies are 1. What is not measured is not in the file: there the device
keeps the figures of the card that CUDASIM_CARD names.

`--device sim` measures the simulated device itself, by its virtual clock: of a
card's own figures, or of a profile's, it must find what it was given.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time

from tests.gpu_kit import call_costs
from tests.gpu_kit import parts

MIB = 1 << 20


class Device:
    """The card under torch, its events and its clocks."""

    def __init__(self, torch, rounds, large, now_ns):
        self.torch = torch
        self.now_ns = now_ns
        self.rounds = rounds
        self.large = large
        self.cudart = ctypes.CDLL("libcudart.so.13")

    def on_device(self, function):
        """Nanoseconds of `function`'s work on the device, the median."""
        torch = self.torch
        times = []
        for _ in range(self.rounds + 1):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            # Something that keeps the stream busy until the work is queued:
            # the caller's own time must not be measured.
            self.keep_busy()
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            times.append(1e6 * start.elapsed_time(end))
        return statistics.median(times[1:])

    def keep_busy(self):
        """About two milliseconds, longer than any caller here takes."""
        self.torch.cuda._sleep(4_000_000)

    def on_host(self, function, repeat=50):
        """Nanoseconds the caller spends per call, the median of rounds."""
        times = []
        for _ in range(self.rounds):
            self.torch.cuda.synchronize()
            began = self.now_ns()
            for _ in range(repeat):
                function()
            times.append((self.now_ns() - began) / repeat)
        return statistics.median(times)


def _rate(small_ns, large_ns, small, large):
    """Bytes per nanosecond between two sizes, and what is left: latency."""
    rate = (large - small) / max(large_ns - small_ns, 1e-9)
    return rate, max(small_ns - small / rate, 0)


def bandwidths(device):
    torch = device.torch
    large, small = device.large, device.large // 8
    result = {}
    latencies = []
    on_device = torch.empty(large, dtype=torch.uint8, device="cuda")
    for kind, pinned in (("pcie", True), ("pageable", False)):
        on_host = torch.zeros(large, dtype=torch.uint8, pin_memory=pinned)

        def copy(to, source, size):
            return lambda: to[:size].copy_(source[:size], non_blocking=pinned)

        for name, to, source in (("up", on_device, on_host),
                                 ("down", on_host, on_device)):
            rate, latency = _rate(
                device.on_device(copy(to, source, small)),
                device.on_device(copy(to, source, large)), small, large)
            result[f"{kind}_{name}_gb_per_s"] = rate
            if pinned:
                latencies.append(latency)
    other = torch.empty_like(on_device)
    rate, _ = _rate(
        device.on_device(lambda: other[:small].copy_(on_device[:small])),
        device.on_device(lambda: other.copy_(on_device)), small, large)
    result["hbm_gb_per_s"] = 2 * rate  # read and written
    result["memory_efficiency"] = 1
    result["copy_ns"] = statistics.median(latencies)
    if torch.cuda.device_count() > 1:
        far = torch.empty(large, dtype=torch.uint8, device="cuda:1")
        rate, _ = _rate(
            device.on_device(lambda: far[:small].copy_(on_device[:small])),
            device.on_device(lambda: far.copy_(on_device)), small, large)
        result["peer_gb_per_s"] = rate
    return result


def peaks(device, size, kernel_ns):
    torch = device.torch
    result = {"compute_efficiency": 1}

    def product(dtype, name):
        try:
            a = torch.ones(size, size, device="cuda", dtype=dtype)
            took = max(device.on_device(lambda: a @ a) - kernel_ns, 1)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        result[name] = 2 * size**3 / took / 1000
        return None

    skipped = {}
    for dtype, name in ((torch.float64, "fp64_tflops"),
                        (torch.float32, "fp32_tflops"),
                        (torch.float16, "fp16_tflops"),
                        (torch.bfloat16, "bf16_tflops")):
        problem = product(dtype, name)
        if problem:
            skipped[name] = problem
    torch.backends.cuda.matmul.allow_tf32 = True
    product(torch.float32, "tf32_tflops")
    torch.backends.cuda.matmul.allow_tf32 = False
    return result, skipped


def latencies(device):
    torch = device.torch
    small = torch.zeros(16, device="cuda")
    chain = 20

    def launches():
        for _ in range(chain):
            small.add_(1)

    def fills():
        for _ in range(chain):
            device.cudart.cudaMemsetAsync(
                ctypes.c_void_p(small.data_ptr()), 0, ctypes.c_size_t(64),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    return {
        "kernel_ns": device.on_device(launches) / chain,
        "memset_ns": device.on_device(fills) / chain,
        "operator_ns": device.on_host(lambda: small.add_(1)),
    }


def host_checksum(device, simulated):
    """GB/s at which one thread checksums what goes to disk, by the
    kit's library. REQUIRES: KIT_FOLDER."""
    kit_parts = parts.Parts()
    if simulated:
        from stratalloc import simulate

        kit_parts.use_host_clock(simulate.driver().cudasim_host_checksum)
    large, small = device.large, device.large // 8
    view = (ctypes.c_char * large).from_buffer(bytearray(large))
    return _rate(*(device.on_host(
        lambda size=size: kit_parts.payload_checksum(view, size), repeat=3)
        for size in (small, large)), small, large)[0]


def memory(torch):
    """What the context and cuBLAS take, before anything else is allocated."""
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    result = {"memory_bytes": total, "context_bytes": total - free}
    a = torch.ones(64, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    kept = a @ a
    took = torch.cuda.memory_allocated() - before
    if took > 1 * MIB:
        result["cublas_workspace_bytes"] = took - kept.numel() * 4 // 512 * 512
    return result


def properties(torch):
    found = torch.cuda.get_device_properties(0)
    return {
        "compute_major": found.major,
        "compute_minor": found.minor,
        "multiprocessors": found.multi_processor_count,
        "threads_per_multiprocessor":
            found.max_threads_per_multi_processor,
        "l2_bytes": found.L2_cache_size,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--card", default="h200", help="of --device sim")
    parser.add_argument("--profile", metavar="FILE",
                        help="of --device sim: figures in place of the card's")
    args = parser.parse_args()
    simulated = args.device == "sim"
    now_ns = time.perf_counter_ns
    if simulated:
        from stratalloc import simulate

        simulate.load("card", card=args.card, profile=args.profile)
        now_ns = simulate.driver().cudasim_virtual_now_ns
        now_ns.restype = ctypes.c_int64
    import torch

    if not torch.cuda.is_available():
        sys.exit("card_profile.py: torch sees no GPU; --device sim tries it")
    name = torch.cuda.get_device_name(0)
    profile = {"about": f"measured on {name}, driver "
               f"{torch.version.cuda}, {platform.machine()}"}
    if simulated:
        profile["about"] = f"NOT a measurement of a card: {name}"
    profile.update(memory(torch))
    profile.update(properties(torch))
    # The simulated device computes on the CPU: small sizes do, its clock
    # does not care.
    device = Device(torch, rounds=3 if args.quick else 15,
                    large=(16 if simulated else 256) * MIB, now_ns=now_ns)
    profile.update(bandwidths(device))
    profile.update(latencies(device))
    found, skipped = peaks(device, 512 if simulated else 8192,
                           profile["kernel_ns"])
    profile.update(found)
    profile.update(call_costs.measure(device))
    profile["operator_ns"] = max(
        profile["operator_ns"]
        - call_costs.of_an_operator(profile["calls_ns"]), 0)
    if "KIT_FOLDER" in os.environ:
        profile["host_checksum_gb_per_s"] = host_checksum(device, simulated)
    else:
        skipped["host_checksum_gb_per_s"] = (
            "the kit's library, which computes it, is not here")
    for figure, reason in skipped.items():
        print(f"card_profile.py: {figure} left out: {reason}", file=sys.stderr)
    for figure, value in profile.items():
        if isinstance(value, float):
            profile[figure] = round(value, 3)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(profile, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
