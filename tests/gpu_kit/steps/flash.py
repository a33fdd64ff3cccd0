# SPDX-License-Identifier: Apache-2.0
"""Flash attention, forward and backward, with a model larger than the limit."""

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import moved
from tests.gpu_kit.shape import Shape

ASKED = "Does flash attention under pressure give the numbers it gives without?"
OVER = 1.3
_SHAPE = Shape(hidden=4096, layers=6, batch=4, length=1024, heads=32,
               fused=True)
_TOLERANCE = 1e-2  # its backward pass adds in any order, in bfloat16


def run(said):
    if said.simulated:
        raise answer.NotHere(
            "not on the simulated device: flash attention has CUDA kernels "
            "only, and attention is computed there by the CPU's own")
    native = said.must(said.child(passes, "native", 0))
    limit = int(native["peak"] / OVER) // (2 * MIB) * 2 * MIB
    ours = said.must(said.child(passes, "stratalloc", limit))
    said.promise("the output is that of PyTorch's allocator, bit for bit",
                 ours["output"] == native["output"],
                 f"{ours['output']}, not {native['output']}")
    said.promise("so are the gradients, within what adding in any order does",
                 abs(ours["gradients"] - native["gradients"])
                 <= _TOLERANCE * abs(native["gradients"]),
                 f"{ours['gradients']}, not {native['gradients']}")
    said.promise("something had to move", ours["in"] > 0)
    said.figure("limit", limit / GIB, "GiB")
    said.figure("moved in", ours["in"] / GIB, "GiB")
    for name, found in (("native", native), ("ours", ours)):
        said.figure(f"forward and backward, {name}", found["seconds"], "s")


def passes(said, allocator, limit):
    """A child: three passes; the last one's numbers and time."""
    settings = {}
    if allocator == "stratalloc":
        settings = {"gpu_limit": limit, "host_budget": 8 * GIB,
                    "disk_budget": 0}
    device = OnDevice(said, allocator, **settings)
    import torch
    from torch.nn.attention import SDPBackend
    from torch.nn.attention import sdpa_kernel

    from tests.gpu_kit import model as models

    model = models.Model(_SHAPE, torch.bfloat16)
    seconds = []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        states = models.batch(_SHAPE, 0, torch.bfloat16)
        with device.seconds(seconds), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            output = model(states)
            output.float().square().mean().backward()
    gradients = sum(parameter.grad.double().abs().sum().item()
                    for parameter in model.parameters())
    return {"output": models.digest([output]), "gradients": gradients,
            "seconds": seconds[-1], "peak": torch.cuda.max_memory_allocated(),
            "in": moved()["in"] if allocator == "stratalloc" else 0}


if __name__ == "__main__":
    answer.main(run, ASKED)
