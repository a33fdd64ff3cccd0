# SPDX-License-Identifier: Apache-2.0
"""Eager training that needs 1.3 times what the allocator may have.

The model with AdamW is trained under PyTorch's allocator on the whole card;
its peak is the need. Then under ours with a limit of need / 1.3: losses and
parameters must be the same bits, and a step is compared with what the bus and
the computing alone would take.
"""

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.shape import Shape

ASKED = ("Does eager training with 1.3 times the limit give the same bits, and "
         "how long is a step against the bus and the computing?")
OVER = 1.3
# About 24 GiB of parameters, gradients and state.
_SHAPE = Shape(hidden=3072, layers=13, batch=4, length=256)
_EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # the same bits every time
_SMALL = Shape(hidden=256, layers=4, batch=2, length=16, heads=4)


def run(said):
    native = said.must(said.child(train, "native", 0, **_EXACT))
    limit = int(native["peak"] / OVER) // (2 * MIB) * 2 * MIB
    ours = said.must(said.child(train, "stratalloc", limit, **_EXACT))
    said.table("runs", [
        {"allocator": name, **{key: found[key] for key in (
            "losses", "digest", "seconds", "moved", "peak", "reserved")}}
        for name, found in (("native", native), ("stratalloc", ours))])
    same = (ours["losses"], ours["digest"]) == (
        native["losses"], native["digest"])
    if not same:
        again = said.must(said.child(train, "native", 0, **_EXACT))
        said.note("native repeats its own bits: "
                  f"{again['digest'] == native['digest']}")
    said.promise("losses and parameters are those of PyTorch's allocator, bit "
                 "for bit", same, f"losses {ours['losses']}, not "
                 f"{native['losses']}")
    said.promise("no address has changed", ours["addresses_kept"])
    said.promise("no complaint of the simulated device",
                 not ours["complaints"], f"{ours['complaints']}")
    moved = {way: sum(move[way] for move in ours["moved"]) / len(ours["moved"])
             for way in ("out", "in")}
    said.promise("something had to move", moved["in"] > 0, f"{moved}")
    said.figure("need under PyTorch's allocator", native["peak"] / GIB, "GiB")
    said.figure("limit", limit / GIB, "GiB")
    said.promise("the limit is kept", ours["reserved"] <= limit,
                 f"{ours['reserved']} bytes reserved, limit {limit}")
    said.figure("moved out per step", moved["out"] / GIB, "GiB")
    said.figure("moved in per step", moved["in"] / GIB, "GiB")
    said.figure("step under PyTorch's allocator", native["step"], "s")
    said.figure("step under ours", ours["step"], "s")
    bus = max(moved["out"] / (said.card["pcie_down_gb_per_s"] * 1e9),
              moved["in"] / (said.card["pcie_up_gb_per_s"] * 1e9))
    said.figure("the bus alone, at the simulated card's rate", bus, "s")
    said.bar("bus or computing, whichever is longer, of a step",
             max(bus, native["step"]) / ours["step"], at_least=.9)


def train(said, allocator, limit):
    """A child: the training under one allocator."""
    shape = _SMALL if said.simulated else _SHAPE
    need = 16 * shape.parameters
    settings = {}
    if allocator == "stratalloc":
        settings = {"gpu_limit": limit, "host_budget": need, "disk_budget": 0}
    device = OnDevice(said, allocator, **settings)
    from tests.gpu_kit import training

    training.exact()
    return training.train(device, shape, steps=4, warm=2)


if __name__ == "__main__":
    answer.main(run, ASKED)
