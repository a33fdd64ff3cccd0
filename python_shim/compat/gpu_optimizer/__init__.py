# SPDX-License-Identifier: Apache-2.0
"""gpu_optimizer: who allocated what while a model ran, layer by layer.

    from stratalloc.compat.gpu_optimizer import MemoryTracer

    tracer = MemoryTracer()
    with tracer.trace(model):
        model(batch)
    tracer.print_summary()

A thin layer over stratalloc.trace(): the events are those of the allocator's
rings, the layers its scopes. Where torch's own allocator is in place they are
those of torch's memory history and of hooks (_native.py). What is exact, what
differs from the original: gpu_optimizer.md.

Importing it makes ours torch's allocator, if that can still be done.
"""

from stratalloc.compat import _enabling
from stratalloc.compat.gpu_optimizer._records import (
    Events, LayerMemoryStats, MemoryEvent)
from stratalloc.compat.gpu_optimizer._tracer import MemoryTracer

__all__ = ["Events", "LayerMemoryStats", "MemoryEvent", "MemoryTracer"]

_enabling.at_import(
    "gpu_optimizer", "a traced layer's backward is charged to nobody, each "
    "call of a layer costs microseconds, and what other threads allocate is "
    "charged to the layer that runs")
