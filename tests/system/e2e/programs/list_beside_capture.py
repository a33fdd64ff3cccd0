# SPDX-License-Identifier: Apache-2.0
"""A list operator over more than a device of 24 MiB holds, which begins while
another thread captures a graph; JSON.

The capture ends once the first slice runs: its kernel, which is this
program's, waits for that.
"""

import json
import threading

import torch
from stratalloc._native import bridge as _bridge

MIB = 1 << 20

many = [torch.ones(4 * MIB // 4, device="cuda") for _ in range(10)]
static = torch.ones(8, device="cuda")
captured = ["nothing"]
began, runs, ended = (threading.Event() for _ in range(3))
slices = []


def add_scalar(tensors, scalar):
    slices.append(len(tensors))
    runs.set()
    ended.wait()
    for tensor in tensors:
        tensor.add_(scalar)


def capture():
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            static.add_(1.0)
            began.set()
            runs.wait()
        graph.replay()
        captured[0] = static.tolist()
    except RuntimeError as error:
        captured[0] = str(error)
    finally:
        began.set()
        ended.set()


library = torch.library.Library("aten", "IMPL")
library.impl("_foreach_add_.Scalar", add_scalar, "CUDA")
_bridge.call("rescan_guard")
many[0].add_(0.0)  # the first element is there: nothing has to leave for it
capturing = threading.Thread(target=capture)
capturing.start()
began.wait()
said = "done"
try:
    torch._foreach_add_(many, 1.0)
except torch.OutOfMemoryError as error:
    said = str(error)
finally:
    runs.set()
    capturing.join()
print(json.dumps({"said": said, "slices": len(slices), "elements": sum(slices),
                  "captured": captured[0],
                  "values": [tensor[-1].item() for tensor in many]}))
