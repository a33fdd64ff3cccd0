# SPDX-License-Identifier: Apache-2.0
"""A job that fits: nothing moves, and a step takes what it takes natively.

A model whose step is many small kernels, where the allocator's own time shows,
and one of few large ones; each under either allocator in turn, in processes of
their own.
"""

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import median
from tests.gpu_kit.shape import Shape

ASKED = "What does a step of a job that fits take against PyTorch's allocator?"
_SHAPES = {
    "small kernels": Shape(hidden=256, layers=12, batch=2, length=64, heads=4),
    "large kernels": Shape(hidden=2048, layers=8, batch=8, length=512),
}
_SIMULATED = {"small kernels": Shape(hidden=64, layers=2, batch=2, length=8,
                                     heads=4)}
_ROUNDS = 3


def run(said):
    shapes = _SIMULATED if said.simulated else _SHAPES
    for name in shapes:
        found = {"native": [], "stratalloc": []}
        for _ in range(1 if said.simulated or said.quick else _ROUNDS):
            for allocator, runs in found.items():
                runs.append(said.must(said.child(train, name, allocator)))
        steps = {allocator: median([each["step"] for each in runs])
                 for allocator, runs in found.items()}
        for allocator, seconds in steps.items():
            said.figure(f"{name}: step, {allocator}", 1e3 * seconds, "ms")
        said.figure(f"{name}: ours of native's",
                    steps["stratalloc"] / steps["native"], "times", 1,
                    factor=1.1)
        said.bar(f"{name}: ours of native's",
                 steps["stratalloc"] / steps["native"], at_most=1.02)
        ours = found["stratalloc"]
        said.promise(f"{name}: no byte moves", not any(
            sum(move.values()) for each in ours for move in each["moved"]))
        for key, unit in (("peak", "allocated"), ("reserved", "reserved")):
            ratio = ours[0][key] / found["native"][0][key]
            said.figure(f"{name}: peak {unit}, ours of native's", ratio,
                        "times", 1, factor=1.1)


def train(said, name, allocator):
    """A child: steps of one shape under one allocator."""
    shape = (_SIMULATED if said.simulated else _SHAPES)[name]
    settings = {"host_budget": 64 * MIB} if allocator == "stratalloc" else {}
    device = OnDevice(said, allocator, **settings)
    from tests.gpu_kit import training

    small = shape.hidden < 1024
    return training.train(
        device, shape, steps=5 if said.simulated else 100 if small else 15,
        warm=3 if said.simulated else 10)


if __name__ == "__main__":
    answer.main(run, ASKED)
