# SPDX-License-Identifier: Apache-2.0
"""Kernels written in Triton and launched by hand on memory that has left.

No operator shows such a launch; the product enters it as one. Tensors that
together exceed the limit are used in turn, each after it was evicted.
"""

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import moved
from tests.gpu_kit.steps import compiled

ASKED = "Do raw Triton launches find the memory that they were given?"
_COUNT, _EACH = 12, 256 * MIB
_LIMIT = 2 << 30


def run(said):
    if said.simulated:
        raise answer.NotHere(
            "not on the simulated device: it runs no kernel that Triton makes "
            "(it checks such a launch's pointers and computes nothing)")
    compiled.need_compiler(said)
    found = said.must(said.child(launches))
    said.promise("every tensor has its numbers", found["wrong"] == [],
                 f"wrong: {found['wrong']}")
    said.promise("evicted memory came back for launches", found["in"] > 0,
                 f"{found['in']} bytes")
    said.figure("launch on resident memory", found["resident_us"], "us")
    said.figure("the same without stratalloc", said.must(said.child(
        overhead, "native"))["us"], "us")


def launches(said):
    """A child: 3 GiB of tensors, 2 GiB of card."""
    device = OnDevice(said, gpu_limit=_LIMIT, host_budget=2 * _COUNT * _EACH,
                      disk_budget=0)
    import torch

    import stratalloc
    from tests.gpu_kit.triton_kernel import twice_and_one

    count = _EACH // 4
    tensors = []
    for index in range(_COUNT):
        tensor = torch.empty(count, device="cuda")
        tensor.fill_(float(index))
        tensors.append(tensor)
    wrong = []
    before = moved()["in"]
    for round_ in range(2):
        for index, tensor in enumerate(tensors):
            if round_:
                stratalloc.evict(tensor)
            twice_and_one(tensor)
    torch.cuda.synchronize()
    for index, tensor in enumerate(tensors):
        expected = 2 * (2 * float(index) + 1) + 1
        if not bool((tensor == expected).all()):
            wrong.append(index)
    return {"wrong": wrong, "in": moved()["in"] - before,
            "resident_us": _launch_us(device)}


def overhead(said, allocator):
    """A child: the same launch under PyTorch's allocator."""
    return {"us": _launch_us(OnDevice(said, allocator))}


def _launch_us(device, count=200):
    torch = device.torch
    from tests.gpu_kit.triton_kernel import twice_and_one

    tensor = torch.zeros(1024, device="cuda")
    twice_and_one(tensor)
    torch.cuda.synchronize()
    began = device.now_ns()
    for _ in range(count):
        twice_and_one(tensor)
    took = device.now_ns() - began
    torch.cuda.synchronize()
    return took / count / 1e3


if __name__ == "__main__":
    answer.main(run, ASKED)
