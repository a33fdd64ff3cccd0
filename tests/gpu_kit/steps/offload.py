# SPDX-License-Identifier: Apache-2.0
"""Inference with a model twice the limit, against the bus and accelerate.

The same passes on the whole card under PyTorch's allocator, under ours with
half the model as its limit, and with accelerate's cpu_offload, which brings
each layer for each pass. Managed memory is not compared with: a program that
asks for more of it than the card has can hang the GPU.
"""

import importlib.util

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import median
from tests.gpu_kit.on_device import moved
from tests.gpu_kit.shape import Shape

ASKED = ("How long is a pass of a model twice the limit, against bus and "
         "computing and against accelerate's cpu_offload?")
_SHAPE = Shape(hidden=4096, layers=12, batch=4, length=256)
_SMALL = Shape(hidden=1024, layers=4, batch=1, length=8)
_PASSES, _WARM = 5, 3


def run(said):
    native = said.must(said.child(passes, "native"))
    ours = said.must(said.child(passes, "stratalloc"))
    said.promise("the numbers are those of PyTorch's allocator, bit for bit",
                 ours["digest"] == native["digest"],
                 f"{ours['digest']}, not {native['digest']}")
    said.promise("something had to move", ours["in"] > 0)
    said.promise("no complaint of the simulated device",
                 not ours["complaints"], f"{ours['complaints']}")
    said.figure("a pass on the whole card", 1e3 * native["pass"], "ms")
    said.figure("a pass with half of the model", 1e3 * ours["pass"], "ms")
    said.figure("moved in per pass", ours["in"] / GIB, "GiB")
    said.figure("moved out per pass", ours["out"] / GIB, "GiB")
    bus = max(ours["in"] / (said.card["pcie_up_gb_per_s"] * 1e9),
              ours["out"] / (said.card["pcie_down_gb_per_s"] * 1e9))
    said.bar("bus (at the simulated card's rate) or computing, of a pass",
             max(bus, native["pass"]) / ours["pass"], at_least=.95)
    if importlib.util.find_spec("accelerate") is None:
        said.note("accelerate is not on this machine")
        return
    other = said.must(said.child(passes, "accelerate"))
    said.figure("a pass with accelerate's cpu_offload", 1e3 * other["pass"],
                "ms")
    said.bar("ours is faster than accelerate's cpu_offload",
             other["pass"] / ours["pass"], at_least=2)


def passes(said, way):
    """A child: passes of the model in one of the three ways."""
    shape = _SMALL if said.simulated else _SHAPE
    size = 4 * shape.parameters
    settings = {}
    if way == "stratalloc":
        settings = {"gpu_limit": size // 2 // (2 * MIB) * 2 * MIB,
                    "host_budget": 2 * size, "disk_budget": 0}
    device = OnDevice(said, way if way == "stratalloc" else "native",
                      **settings)
    import torch

    from tests.gpu_kit import model as models

    model = models.Model(shape).requires_grad_(False)
    if way == "accelerate":
        from accelerate import cpu_offload

        cpu_offload(model.cpu(), execution_device=torch.device("cuda", 0))
    seconds, before = [], None
    for number in range(_WARM + _PASSES):
        if number == _WARM and way == "stratalloc":
            before = moved()
        states = models.batch(shape, 0)
        with torch.no_grad(), device.seconds(seconds):
            output = model(states)
    found = {"pass": median(seconds[_WARM:]), "in": 0, "out": 0,
             "digest": models.digest([output]),
             "complaints": device.complaints()}
    if before is not None:
        after = moved()
        for direction in ("in", "out"):
            found[direction] = (after[direction] - before[direction]) / _PASSES
    return found


if __name__ == "__main__":
    answer.main(run, ASKED)
