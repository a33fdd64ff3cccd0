# SPDX-License-Identifier: Apache-2.0
"""Random programs on one GPU: a list of steps, each a list of plain values.

A program is data: it goes to the workers as JSON, and any subset of its steps
is a program too (a step whose tensor, pool or graph is not there is passed
over), so that a failing one can be shortened.

Every step means the same under both allocators whatever they have cached: what
is alive stays under an eighth of the device, and a step that must run out of
memory asks for more than the device or the limit has in all.

Steps
  alloc SLOT BYTES STREAM           a tensor, filled with a value of its own
  free SLOT                         drops it
  write SLOT VALUE                  fills it, on its stream
  resize SLOT BYTES                 resize_ in place
  record SLOT STREAM                record_stream, and a kernel there
  wait STREAM STREAM                the first waits for the second
  synchronise                       and one small pair of malloc and free
  empty_cache
  too_large BYTES                   must be out of memory
  limited FRACTION BYTES            out of memory under a fraction, then 1.0
  fault SLOT BYTES STREAM           alloc while the driver's next call fails
  raw SLOT BYTES STREAM             caching_allocator_alloc
  raw_free SLOT                     caching_allocator_delete
  reset_peak, reset_accumulated
  snapshot                          sums of the snapshot are compared
  pool POOL USE_ON_OOM NO_SPLIT     a MemPool
  in_pool POOL STEPS                use_mem_pool around steps
  drop_pool POOL
  capture GRAPH POOL SIZES          a graph of fills and sums; POOL -1: its own
  replay GRAPH VALUE
  drop_graph GRAPH
  thread STEPS                      on another thread, joined
"""

import random

MIB = 1 << 20
DEVICE = "2GiB"
DEVICE_BYTES = 2048 * MIB
LIVE_BYTES = 192 * MIB
STREAMS = 4  # 0 is the default stream
SLOTS = 12

# Around every border of rounding, pools and segments.
BORDERS = (1, 511, 512, 513, 4096, 1 << 18, MIB - 512, MIB - 1, MIB, MIB + 1,
           2 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 20 * MIB)  # fmt: skip


class _Maker:
    """One program; `size` steps of which some hold further ones."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.live = {}  # slot: bytes

    def bytes(self):
        choose = self.random.random()
        if choose < 0.35:
            size = self.random.choice(BORDERS)
        elif choose < 0.7:
            size = self.random.randint(1, 64 << 10)
        elif choose < 0.9:
            size = self.random.randint(64 << 10, 2 * MIB)
        else:
            size = self.random.randint(2 * MIB, 40 * MIB)
        room = LIVE_BYTES - sum(self.live.values())
        return max(1, min(size, room))

    def alloc(self, kind="alloc"):
        slot = self.random.randrange(SLOTS)
        self.live.pop(slot, None)
        size = self.bytes()
        self.live[slot] = size
        return [kind, slot, size, self.random.randrange(STREAMS)]

    def free(self):
        slot = self.random.randrange(SLOTS)
        self.live.pop(slot, None)
        return ["free", slot]

    def resize(self):
        slot = self.random.randrange(SLOTS)
        self.live.pop(slot, None)
        size = self.bytes()
        self.live[slot] = size
        return ["resize", slot, size]

    def nested(self, steps):
        """Steps inside a pool or on another thread."""
        made = []
        for _ in range(self.random.randint(1, steps)):
            made.append(
                self.random.choice(
                    (self.alloc, self.alloc, self.alloc, self.free, self.write)
                )()
            )
        return made

    def write(self):
        return [
            "write",
            self.random.randrange(SLOTS),
            self.random.randrange(1, 251),
        ]

    def step(self):
        r = self.random
        makers = (
            (26, self.alloc),
            (20, self.free),
            (6, self.write),
            (3, self.resize),
            (8, lambda: ["record", r.randrange(SLOTS), r.randrange(STREAMS)]),
            (3, lambda: ["wait", r.randrange(STREAMS), r.randrange(STREAMS)]),
            (2, lambda: ["synchronise"]),
            (2, lambda: ["empty_cache"]),
            (1, lambda: ["too_large", DEVICE_BYTES + r.randint(1, 512 * MIB)]),
            (1, lambda: ["limited", r.choice((0.05, 0.25, 0.5)),
                         DEVICE_BYTES // 2 + r.randint(1, 64 * MIB)]),
            (2, lambda: self.alloc("fault")),
            (2, lambda: ["raw", r.randrange(4), r.choice(BORDERS),
                         r.randrange(STREAMS)]),
            (2, lambda: ["raw_free", r.randrange(4)]),
            (1, lambda: ["reset_peak"]),
            (1, lambda: ["reset_accumulated"]),
            (1, lambda: ["snapshot"]),
            (2, lambda: ["pool", r.randrange(2), int(r.random() < 0.3), 0]),
            (4, lambda: ["in_pool", r.randrange(2), self.nested(5)]),
            (1, lambda: ["drop_pool", r.randrange(2)]),
            (2, lambda: ["capture", r.randrange(2), r.choice((-1, -1, 0, 1)),
                         [r.choice(BORDERS[:12]) for _ in
                          range(r.randint(1, 4))]]),
            (3, lambda: ["replay", r.randrange(2), r.randrange(1, 100)]),
            (1, lambda: ["drop_graph", r.randrange(2)]),
            (2, lambda: ["thread", self.nested(4)]),
        )  # fmt: skip
        weights = [weight for weight, _ in makers]
        return r.choices([maker for _, maker in makers], weights)[0]()


def make(seed):
    """The program of a seed: 10 to 60 steps."""
    maker = _Maker(seed)
    return [maker.step() for _ in range(maker.random.randint(10, 60))]


def as_text(program):
    """Steps as lines that can be pasted into a test."""
    return "[\n" + "".join(f"    {step!r},\n" for step in program) + "]"
