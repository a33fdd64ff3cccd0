# SPDX-License-Identifier: Apache-2.0
"""Does mapping and unmapping one range slow kernels on another?"""

import threading

from tests.gpu_kit import answer
from tests.gpu_kit import parts as product
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import median

ASKED = ("Are kernels on one range slower while another range is mapped and "
         "unmapped?")


def run(said):
    device = OnDevice(said, "native")
    torch = device.torch
    data = torch.ones(64 * MIB // 4, device="cuda")
    count = 20 if said.simulated else 500
    parts = product.Parts()
    parts.open()

    def kernels():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        device.keep_busy(1)
        start.record()
        for _ in range(count):
            data.mul_(1.)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    kernels()
    alone = median([kernels() for _ in range(5)])
    cycles, beside = _beside(device, parts, kernels)
    said.figure("handles of 32 MiB made, mapped, unmapped and released "
                "meanwhile", cycles, "cycles")
    said.figure(f"{count} kernels beside that, of alone", beside / alone,
                "times", 1, factor=1.25)
    said.figure(f"{count} kernels of 64 MiB alone", alone, "ms")


def _beside(device, parts, kernels):
    stop, cycles, failure = threading.Event(), [0], []

    def remap():
        device.background()
        try:
            while not stop.is_set():
                parts.cycle(32 * MIB, 1)
                cycles[0] += 1
        except product.PartsError as error:
            failure.append(error)

    thread = threading.Thread(target=remap)
    thread.start()
    try:
        beside = median([kernels() for _ in range(5)])
    finally:
        stop.set()
        thread.join()
    if failure:
        raise failure[0]
    return cycles[0], beside


if __name__ == "__main__":
    answer.main(run, ASKED)
