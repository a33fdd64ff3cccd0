# SPDX-License-Identifier: Apache-2.0
"""List operators that slices do not help, on a device of 24 MiB; JSON."""

import json

import torch

MIB = 1 << 20


def ones(mib):
    return torch.ones(mib * MIB // 4, device="cuda")


def refused(call):
    try:
        call()
    except torch.OutOfMemoryError as error:
        return str(error)
    return "done"


said = {}
# 16 MiB beside 16: they never are on the device together.
xs = [ones(4), ones(16), ones(4)]
ys = [ones(4), ones(16), ones(4)]
said["one_element"] = refused(lambda: torch._foreach_add_(xs, ys))
said["after"] = [x[0].item() for x in xs]
del xs, ys

many = [ones(4) for _ in range(10)]
around = torch.library.Library("around", "DEF")
around.define("add_one(Tensor x) -> ()")


def add_one(_):
    torch._foreach_add_(many, 1.0)


around.impl("add_one", add_one, "CUDA")
said["inside"] = refused(lambda: torch.ops.around.add_one(many[0]))


def captured():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch._foreach_add_(many, 1.0)


said["captured"] = refused(captured)
torch.cuda.synchronize()
said["again"] = refused(lambda: torch._foreach_add_(many, 1.0))
print(json.dumps(said))
