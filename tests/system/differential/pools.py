# SPDX-License-Identifier: Apache-2.0
"""The steps with pools, graphs and checkpoints."""

import gc

import torch

from tests.system.differential.program import STREAMS
from tests.system.differential.tensors import Tensors


class Pools(Tensors):
    """One program's pools and graphs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.pools = {}
        self.used = set()  # pools that a thread allocates in
        self.graphs = {}  # (graph, input, outputs)
        self.names = {(0, 0): ""}  # of pools, by identity

    def name_of(self, pool_id):
        return self.names.get(pool_id, "not ours")

    def named(self, pool_id, kind):
        self.names.setdefault(pool_id, f"{kind} {len(self.names)}")

    def device_of(self, pool):
        """Pool 1 is on the second device, where there is one."""
        return min(pool, torch.cuda.device_count() - 1)

    def pool(self, pool, use_on_oom, no_split):
        if pool in self.pools:
            return None
        with torch.cuda.device(self.device_of(pool)):
            made = torch.cuda.MemPool(
                use_on_oom=bool(use_on_oom), no_split=bool(no_split)
            )
        self.named(made.id, "pool")
        self.lends |= bool(use_on_oom)
        self.pools[pool] = made
        return made.use_count()

    def route(self, pool):
        """The context of use_mem_pool, or None: not there, or in use.

        A second use at a time is refused by both, and native counts it.
        """
        if pool not in self.pools or pool in self.used:
            return None
        if not self.routed:
            self.synchronise()  # nothing may wait for events now: see free()
        return torch.cuda.use_mem_pool(self.pools[pool], self.device_of(pool))

    def in_pool(self, pool, steps):
        context = self.route(pool)
        if context is None:
            return None
        with context:
            self.entered(pool)
            counts = [self.pools[pool].use_count()]
            shown = [self.step(step) for step in steps]
        self.left(pool)
        return [counts, shown, self.in_use(pool)]

    def entered(self, pool):
        self.used.add(pool)
        self.routed += 1

    def left(self, pool):
        self.used.discard(pool)
        self.routed -= 1

    def in_use(self, pool):
        """Its uses, and what is live in it."""
        blocks = [
            b for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == tuple(self.pools[pool].id)
            for b in segment["blocks"]
        ]  # fmt: skip
        live = [b for b in blocks if b["state"] != "inactive"]
        return [self.pools[pool].use_count(),
                sorted(b["requested_size"] for b in live)]  # fmt: skip

    def drop_pool(self, pool):
        if pool in self.used:
            return None
        # Its end waits for events: of the pool under native, of all under ours.
        if not self.routed:
            self.synchronise()
        return self.pools.pop(pool, None) is not None

    def lend(self, use_on_oom, cached, wanted):
        """More than half of the device is cached in a pool, and asked for."""
        pool = torch.cuda.MemPool(use_on_oom=bool(use_on_oom))
        self.synchronise()
        with torch.cuda.use_mem_pool(pool):
            torch.empty(cached, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(wanted, dtype=torch.uint8, device="cuda")
        finally:
            del pool
            torch.cuda.empty_cache()

    def checkpoint(self, sizes, more, kept):
        """What graph trees do: a pool of which `kept` tensors are in use goes
        on, and back to what it was."""
        self.synchronise()
        pool = torch.cuda.MemPool()
        allocate = lambda sizes: [
            torch.full((size,), i + 1, dtype=torch.uint8, device="cuda")
            for i, size in enumerate(sizes)
        ]
        with torch.cuda.use_mem_pool(pool):
            before = allocate(sizes)
            del before[kept:]
        state = torch._C._cuda_getCheckpointState(0, pool.id)
        places = [(each.data_ptr(), len(each)) for each in before]
        shown = [self.counted()]
        del before
        with torch.cuda.use_mem_pool(pool):
            stale = allocate(more)
        # Storages like those that a graph's outputs get at each replay.
        back = [_tensor_at(*place) for place in places]
        torch._C._cuda_setCheckpointPoolState(
            0, state,
            [each.untyped_storage()._cdata for each in stale],
            [each.untyped_storage()._cdata for each in back],
        )  # fmt: skip
        # native has allocated the free blocks for a moment, and counted them;
        # and forgotten what was asked for.
        self.reset_peak()
        self.reset_accumulated()
        shown.append(self.counted(without="requested_bytes"))
        shown.append(torch._C._cuda_checkPoolLiveAllocations(
            0, pool.id, {pointer for pointer, _ in places}))
        # What they hold is what was written there last: that depends on places.
        for i in range(len(back)):  # no name may outlive the step
            back[i].fill_(100 + i)
        with torch.cuda.use_mem_pool(pool):
            again = allocate(more)
        shown.append(self.counted(without="requested_bytes"))
        shown.append([each.data_ptr() in dict(places) for each in again])
        shown.append([self.value(each) for each in back])
        del stale, back, again
        self.reset_peak()
        self.reset_accumulated()
        return shown

    def capture(self, graph, pool, sizes):
        given = self.given(graph, pool)
        if given is None:
            return None
        made = torch.cuda.CUDAGraph()
        source = torch.ones(64, dtype=torch.int64, device="cuda")
        outputs = []
        self.routed += 1
        try:
            with torch.cuda.graph(made, **given):
                for i, size in enumerate(sizes):
                    scratch = torch.ones(
                        abs(size), dtype=torch.uint8, device="cuda"
                    )
                    if size < 0:
                        self.fork(scratch)
                    outputs.append(source * (i + 2) + scratch[:1])
                    if i % 2 or size < 0:
                        del scratch
        finally:
            self.routed -= 1
        self.named(made.pool(), "graph")
        self.graphs[graph] = (made, source, outputs)
        return len(outputs)

    def given(self, graph, pool):
        """Arguments of torch.cuda.graph, or None: not possible now."""
        if self.routed or graph in self.graphs:
            return None
        given = {}
        if pool == 2:
            other = self.graphs.get((graph + 1) % 3)
            if other is None:
                return None
            given["pool"] = other[0].pool()
        elif pool >= 0:
            if pool not in self.pools or self.device_of(pool) != 0:
                return None
            given["pool"] = self.pools[pool].id
        self.synchronise()
        return given

    def fork(self, scratch):
        """Work of the graph on a stream beside it."""
        here, side = torch.cuda.current_stream(), self.streams[3]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            scratch.add_(1)
        scratch.record_stream(side)
        here.wait_stream(side)

    def capture_too_large(self, graph, size):
        if self.given(graph, -1) is None:
            return None
        made = torch.cuda.CUDAGraph()
        self.routed += 1
        try:
            with torch.cuda.graph(made):
                kept = torch.ones(100, device="cuda")
                try:
                    self.too_large(size)
                finally:
                    del kept
        finally:
            self.routed -= 1
            del made

    def replay(self, graph, value):
        if graph not in self.graphs:
            return None
        made, source, outputs = self.graphs[graph]
        source.fill_(value)
        made.replay()
        return [int(each.sum()) for each in outputs]

    def drop_outputs(self, graph, count):
        if graph not in self.graphs:
            return None
        del self.graphs[graph][2][:count]
        return len(self.graphs[graph][2])

    def drop_graph(self, graph):
        return self.graphs.pop(graph, None) is not None

    def graphed(self, size, value):
        """Forward and backward of a function, from graphs."""
        if self.routed:
            return None
        self.synchronise()
        # It takes the next of torch's streams, which go round: the first after
        # the program's own, whatever programs before this one took.
        last = self.streams[STREAMS - 1].cuda_stream
        while torch.cuda.Stream().cuda_stream != last:
            pass
        # On this thread: torch's own lets go of what it used in the backward
        # pass a moment after it said that it was done.
        with torch.autograd.set_multithreading_enabled(False):
            return self.graph_and_use(size, value)

    def graph_and_use(self, size, value):
        ones = lambda: torch.ones(size, device="cuda", requires_grad=True)
        given, weight = ones(), ones()
        called = torch.cuda.make_graphed_callables(
            lambda x, w: ((x * w) + w).relu(), (ones(), ones())
        )
        shown = []
        for i in range(2):
            with torch.no_grad():
                given.fill_(value + i)
            out = called(given, weight)
            out.sum().backward()
            shown.append([float(out.sum()), float(weight.grad.sum())])
        shown.append([None, self.counted()])
        del given, weight, called, out, ones
        gc.collect()
        self.synchronise()
        return shown

    def close(self):
        contents = super().close()
        self.synchronise()
        self.graphs.clear()
        self.pools.clear()
        return contents


def _tensor_at(pointer, size):
    """A tensor whose storage is said to be there; nobody frees it yet."""
    storage = torch._C._construct_storage_from_data_pointer(
        pointer, torch.device("cuda", 0), size
    )
    tensor = torch.empty([0], device="cuda", dtype=torch.uint8)
    return tensor.set_(source=storage, storage_offset=0, size=(size,),
                       stride=(1,))  # fmt: skip
