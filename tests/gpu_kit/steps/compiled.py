# SPDX-License-Identifier: Apache-2.0
"""torch.compile under pressure: one region that was evicted, and a model
larger than the limit compiled block by block.

On the simulated device, which runs no kernel that Triton makes, Inductor keeps
PyTorch's operators (fallback_by_default): what is compiled there is the graph.
"""

import shutil

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import moved
from tests.gpu_kit.shape import Shape

ASKED = "Does compiled code find its memory when that has left the device?"
OVER = 1.3
_SHAPE = Shape(hidden=4096, layers=8, batch=4, length=256)
# Above the workspace of cuBLAS, which is 32 MiB on this card.
_SMALL = Shape(hidden=1024, layers=4, batch=2, length=8)
_TOLERANCE = 2e-3  # Inductor joins operators: other roundings


def run(said):
    need_compiler(said)
    found = said.must(said.child(regions, TORCHINDUCTOR_COMPILE_THREADS="1"
                                 if said.simulated else "4"))
    for name, result in found["results"].items():
        said.promise(f"{name}: the numbers of eager execution",
                     result["error"] <= _TOLERANCE,
                     f"largest difference {result['error']}")
        said.promise(f"{name}: evicted memory came back",
                     result["in"] > 0, f"{result['in']} bytes")
        said.figure(f"{name}: back for a call", result["in"] / GIB, "GiB")
        said.figure(f"{name}: a call", 1e3 * result["seconds"], "ms")
    said.promise("a region larger than the limit is refused by name",
                 found["refusal"] is not None
                 and "a compiled graph" in found["refusal"],
                 f"{found['refusal']}")
    said.note(f"the refusal: {found['refusal']}")
    said.promise("no complaint of the simulated device",
                 not found["complaints"], f"{found['complaints']}")


def need_compiler(said):
    """Triton builds its launchers in C; raises NotHere if nothing can."""
    if said.simulated:
        return
    import os

    named = os.environ.get("CC")
    for name in [named] if named else ["gcc", "clang", "cc"]:
        if shutil.which(name):
            return
    raise answer.NotHere(
        "Triton needs a C compiler (gcc or clang, or CC) to build its "
        "launchers, and there is none on this machine")


def regions(said):
    """A child: the limit is below the model and above a block."""
    shape = _SMALL if said.simulated else _SHAPE
    size = 4 * shape.parameters
    limit = int(size / OVER) // (2 * MIB) * 2 * MIB
    device = OnDevice(said, gpu_limit=limit, host_budget=2 * size + GIB // 4,
                      disk_budget=0)
    import torch

    import stratalloc
    from tests.gpu_kit import model as models

    torch.set_float32_matmul_precision("highest")
    if said.simulated:
        from torch._inductor import config

        config.fallback_by_default = True
    model = models.Model(shape).requires_grad_(False)
    states = models.batch(shape, 0)
    expected = model(states)
    results = {}

    def call(name, function, owner, wanted):
        function(states)  # compiles
        stratalloc.evict(owner)
        before, seconds = moved(), []
        with device.seconds(seconds):
            result = function(states)
        results[name] = {
            "in": moved()["in"] - before["in"], "seconds": seconds[0],
            "error": ((result - wanted).abs().max()
                      / wanted.abs().max()).item()}

    block = model.blocks[0]
    call("one block that was evicted", torch.compile(block), block,
         block(states))
    refusal = None
    try:
        torch.compile(model)(states)
    except torch.OutOfMemoryError as error:
        refusal = str(error)
    torch._dynamo.reset()
    stratalloc.compile_per_layer(model)
    call(f"a model of {OVER} times the limit, per layer", model, model,
         expected)
    return {"results": results, "refusal": refusal,
            "complaints": device.complaints()}


if __name__ == "__main__":
    answer.main(run, ASKED)
