# SPDX-License-Identifier: Apache-2.0
"""The checksum kernel on this card: right, how fast, what its code takes.

The kernel says whether a host copy is still true, before and after each copy,
and may take 3 % of the copies' time.
"""

from tests.gpu_kit import answer
from tests.gpu_kit import parts as product
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import median

ASKED = ("Does the checksum kernel agree with the host, how fast is it, and "
         "what does its module take at its first launch?")
_SIZES = (16, 4096, 2 * MIB, 2 * MIB + 16, 32 * MIB)


def run(said):
    device = OnDevice(said, "native")
    torch = device.torch
    parts = product.Parts()
    device.use_clock_of_calls(parts)
    torch.cuda.init()
    torch.ones(1, device="cuda")
    parts.open()
    seconds, used = parts.load_checksum()
    said.figure("loading it and its first launch", 1e3 * seconds, "ms")
    said.figure("memory of the card that takes", used, "bytes", 0,
                floor=4 * MIB)

    torch.manual_seed(1)
    for size in _SIZES:
        data = torch.empty(size, dtype=torch.uint8, device="cuda").random_()
        host = data.cpu()
        found = _sums(torch, parts, [data.data_ptr()], size)[0]
        expected = parts.checksum_on_host(host.data_ptr(), size)
        said.promise(f"{size} bytes: the kernel says what the host says",
                     found == expected, f"{found:#x}, not {expected:#x}")
        data[size // 2] ^= 1
        changed = _sums(torch, parts, [data.data_ptr()], size)[0]
        said.promise(f"{size} bytes: one bit changed shows",
                     changed != found, f"{found:#x} both times")
    _rate(said, device, parts)


def _sums(torch, parts, addresses, size):
    results = parts.checksums(addresses, size,
                              torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return results[:len(addresses)]


def _rate(said, device, parts):
    """As the engine does it: up to 64 ranges of a handle each at a time."""
    torch = device.torch
    for size, count in ((2 * MIB, 64), (32 * MIB, 8 if said.simulated else 64)):
        data = torch.zeros(size * count, dtype=torch.uint8, device="cuda")
        addresses = [data.data_ptr() + i * size for i in range(count)]
        stream = torch.cuda.current_stream().cuda_stream
        _sums(torch, parts, addresses, size)
        times = []
        for _ in range(1 if said.simulated else 10):
            start, end = (torch.cuda.Event(enable_timing=True)
                          for _ in range(2))
            # The launches are queued behind it: the host's time is not theirs.
            device.keep_busy(1)
            start.record()
            parts.checksums(addresses, size, stream)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        seconds = median(times)
        reading = size * count / (said.card["hbm_gb_per_s"] * 1e9
                                  * said.card["memory_efficiency"])
        rate = size * count / seconds
        # A fill and a copy of the words beside the kernels.
        expected = reading + (count * said.card["kernel_ns"]
                              + said.card["memset_ns"]
                              + said.card["copy_ns"]) / 1e9
        said.figure(f"{count} x {size // MIB} MiB", rate / GIB, "GiB/s",
                    size * count / expected / GIB)
        copying = size * count / (said.card["pcie_down_gb_per_s"] * 1e9)
        said.bar(f"two of them, of a copy's time at {size // MIB} MiB",
                 2 * seconds / copying, at_most=.03)


if __name__ == "__main__":
    answer.main(run, ASKED)
