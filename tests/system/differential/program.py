# SPDX-License-Identifier: Apache-2.0
"""Random programs on one or two GPUs: a list of steps, each a list of plain
values.

A program is data: it goes to the workers as JSON, and any subset of its steps
is a program too (a step whose tensor, pool or graph is not there is passed
over), so that a failing one can be shortened.

Every step means the same under both allocators whatever they have cached: what
is alive stays under an eighth of the device, and a step that must run out of
memory asks for more than the device or the limit has in all. A starved program
has about as much memory as it needs (room_of), so any step may be refused.

STREAM 0 to 3 are on the first device, 0 its default; 4 and 5 on the second,
which every fourth program uses. Pool 1 is on the second device then. SLOT names
a tensor, and the step that frees one need not be on the thread or stream that
made it.

Steps
  alloc SLOT BYTES STREAM           a tensor, filled with a value of its own
  free SLOT                         drops it
  write SLOT VALUE                  fills it, on its stream
  resize SLOT BYTES                 resize_ in place
  copy SLOT SLOT                    as many bytes as both have, between devices
  record SLOT STREAM                record_stream, and a kernel there
  wait STREAM STREAM                the first waits for the second
  synchronise                       and one small pair of malloc and free
  empty_cache
  too_large BYTES                   must be out of memory
  limited FRACTION BYTES            out of memory under a fraction, then 1.0
  tight FRACTION BYTES STREAM       fits if nothing cached is kept, then 1.0
  fraction FRACTION                 from here on; half the device is enough
  rounding DIVISIONS                roundup_power2_divisions from here on
  fault SLOT BYTES STREAM CALL NTH  alloc while one of the driver's calls fails
  starved BYTES STREAM              out of memory: each call fails
  raw SLOT BYTES STREAM             caching_allocator_alloc
  raw_free SLOT                     caching_allocator_delete
  reset_peak, reset_accumulated
  snapshot                          its blocks and sums are compared
  pool POOL USE_ON_OOM NO_SPLIT     a MemPool
  in_pool POOL STEPS                use_mem_pool around steps
  drop_pool POOL
  lend USE_ON_OOM BYTES BYTES       out of memory, unless a pool lends
  checkpoint SIZES SIZES KEPT       a pool goes back to the first that are kept
  capture GRAPH POOL SIZES          a graph of fills and sums; POOL -1: its own,
                                    2: another graph's; SIZES below 0: used on
                                    another stream, recorded and freed there
  capture_too_large GRAPH BYTES     out of memory while a stream captures
  replay GRAPH VALUE
  drop_outputs GRAPH COUNT          their memory is free, the graph goes on
  drop_graph GRAPH
  graphed SIZE VALUE                make_graphed_callables, used and dropped
  thread STEPS                      on another thread, joined
  threads [THREAD, STEP]...         three threads take turns, each on a stream
                                    of its own: STREAM -1. Only here:
                                    [enter, POOL] and [leave]: use_mem_pool
"""

import random

MIB = 1 << 20
DEVICE = "2GiB"
DEVICE_BYTES = 2048 * MIB
LIVE_BYTES = 192 * MIB
STREAMS = 4  # of the first device
ALL_STREAMS = 6  # of both
THREADS = 3
SLOTS = 12

# Of a starved program: its least, and what it gets of what it needs. Below 0.6
# little is served, and from 1.3 on little refused.
LEAST_ROOM = 12 * MIB
ROOM = (0.6, 1.3)
# These ask for more than a starved program can have, or count on a cache; or
# capture: see compare.py.
UNSTARVED = ("tight", "starved", "lend", "capture", "capture_too_large",
             "graphed", "replay", "drop_outputs", "drop_graph")  # fmt: skip

# Around every border of rounding, pools and segments.
BORDERS = (1, 511, 512, 513, 4096, 1 << 18, MIB - 512, MIB - 1, MIB, MIB + 1,
           2 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 20 * MIB)  # fmt: skip


class _Maker:
    """One program; `size` steps of which some hold further ones."""

    def __init__(self, seed, devices, without, lends=True):
        self.random = random.Random(seed)
        self.lends = lends  # some pools do
        self.live = {}  # slot: bytes
        self.streams = (STREAMS, ALL_STREAMS)[devices - 1]
        self.without = without

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

    def stream(self):
        return self.random.randrange(self.streams)

    def slot(self):
        return self.random.randrange(SLOTS)

    def filled(self):
        """A slot to put a tensor into, and how large."""
        slot = self.slot()
        self.live.pop(slot, None)
        self.live[slot] = self.bytes()
        return [slot, self.live[slot]]

    def alloc(self):
        return ["alloc", *self.filled(), self.stream()]

    def fault(self):
        return ["fault", *self.filled(), self.stream(),
                self.random.choice(("create", "map", "access")),
                self.random.choice((1, 1, 2, 3))]  # fmt: skip

    def free(self):
        slot = self.slot()
        self.live.pop(slot, None)
        return ["free", slot]

    def resize(self):
        return ["resize", *self.filled()]

    def write(self):
        return ["write", self.slot(), self.random.randrange(1, 251)]

    def record(self):
        return ["record", self.slot(), self.stream()]

    def too_large(self):
        over = self.random.randint(1, 512 * MIB)
        return ["too_large", DEVICE_BYTES + over]

    def nested(self, steps, depth=1):
        """Steps inside a pool or on another thread."""
        made = []
        for _ in range(self.random.randint(1, steps)):
            if depth > 0 and self.random.random() < 0.04:
                step = self.in_pool(depth - 1)
            elif self.random.random() < 0.02:
                step = self.too_large()
            else:
                step = self.random.choice((self.alloc, self.alloc, self.alloc,
                                           self.free, self.write,
                                           self.record))()  # fmt: skip
            made.append(step)
        return made

    def in_pool(self, depth=1):
        return ["in_pool", self.random.randrange(2), self.nested(5, depth)]

    def threads(self):
        """Turns of three threads, mostly on the stream of each."""
        made = []
        for _ in range(self.random.randint(3, 14)):
            step = self.random.choices(
                (self.alloc, self.free, self.write, self.record, self.resize,
                 self.too_large, lambda: ["enter", self.random.randrange(2)],
                 lambda: ["leave"]), (12, 8, 2, 4, 1, 0.3, 2, 2))[0]()  # fmt: skip
            if step[0] == "alloc" and self.random.random() < 0.7:
                step[3] = -1
            made.append([self.random.randrange(THREADS), step])
        return ["threads", made]

    def capture(self):
        sizes = [self.random.choice(BORDERS[:12])
                 * self.random.choice((1, 1, 1, -1))
                 for _ in range(self.random.randint(1, 4))]  # fmt: skip
        return ["capture", self.random.randrange(3),
                self.random.choice((-1, -1, 0, 1, 2)), sizes]  # fmt: skip

    def checkpoint(self):
        r = self.random
        sizes, more = ([r.choice(BORDERS[:12]) for _ in range(r.randint(1, 4))]
                       for _ in range(2))  # fmt: skip
        return ["checkpoint", sizes, more, r.randint(0, len(sizes))]

    def step(self):
        r = self.random
        makers = (
            (28, self.alloc),
            (22, self.free),
            (6, self.write),
            (3, self.resize),
            (2, lambda: ["copy", self.slot(), self.slot()]),
            (8, self.record),
            (3, lambda: ["wait", self.stream(), self.stream()]),
            (2, lambda: ["synchronise"]),
            (2, lambda: ["empty_cache"]),
            (1, self.too_large),
            (1, lambda: ["limited", r.choice((0.05, 0.25, 0.5)),
                         DEVICE_BYTES // 2 + r.randint(1, 64 * MIB)]),
            (0.5, lambda: ["tight", r.choice((0.5, 0.75)),
                           r.randint(100 * MIB, 250 * MIB), self.stream()]),
            (0.5, lambda: ["fraction", r.choice((0.5, 0.75, 1.0))]),
            (0.5, lambda: ["rounding", r.choice((1, 2, 4, 8))]),
            (2, self.fault),
            # More than what tight leaves in native's cache, which a block in
            # use there keeps from being given back.
            (0.7, lambda: ["starved", r.randint(256 * MIB, 320 * MIB),
                           self.stream()]),
            (2, lambda: ["raw", r.randrange(4), r.choice(BORDERS),
                         self.stream()]),
            (2, lambda: ["raw_free", r.randrange(4)]),
            (1, lambda: ["reset_peak"]),
            (1, lambda: ["reset_accumulated"]),
            (1, lambda: ["snapshot"]),
            (2, lambda: ["pool", r.randrange(2),
                         int(r.random() < 0.3 and self.lends),
                         int(r.random() < 0.25)]),
            (4, self.in_pool),
            (1, lambda: ["drop_pool", r.randrange(2)]),
            (0.4, lambda: ["lend", int(r.random() < 0.7),
                           r.randint(1200 * MIB, 1300 * MIB),
                           r.randint(1000 * MIB, 1200 * MIB)]),
            (0.5, self.checkpoint),
            (2, self.capture),
            (0.2, lambda: ["capture_too_large", r.randrange(3),
                           DEVICE_BYTES + r.randint(1, 64 * MIB)]),
            (3, lambda: ["replay", r.randrange(3), r.randrange(1, 100)]),
            (1, lambda: ["drop_outputs", r.randrange(3), r.randint(1, 3)]),
            (1, lambda: ["drop_graph", r.randrange(3)]),
            (0.15, lambda: ["graphed", r.choice((1, 1000, MIB // 4, MIB)),
                            r.randrange(1, 100)]),
            (1, lambda: ["thread", self.nested(4)]),
            (2, self.threads),
        )  # fmt: skip
        weights = [weight for weight, _ in makers]
        while True:
            made = r.choices([maker for _, maker in makers], weights)[0]()
            if made[0] not in self.without:
                return made


def make(seed, devices=None, without=(), starved=False):
    """The program of a seed: 10 to 60 steps, none of which is in `without`.

    `devices` None: every fourth uses two. `starved`: nothing that makes no
    sense where any request may be refused (compare.py, "Not generated").
    """
    if starved:
        without = (*without, *UNSTARVED)
    maker = _Maker(seed, devices or 1 + (seed % 4 == 0), without, not starved)
    return [maker.step() for _ in range(maker.random.randint(10, 60))]


# Where a step names streams.
_STREAMS_AT = {"alloc": (3,), "fault": (3,), "raw": (3,), "tight": (3,),
               "record": (2,), "starved": (2,), "wait": (1, 2)}  # fmt: skip


def devices_of(program):
    """How many devices its streams are on."""
    return 1 + any(stream >= STREAMS for step in each_step(program)
                   for stream in map(step.__getitem__,
                                     _STREAMS_AT.get(step[0], ())))  # fmt: skip


def each_step(program):
    """The steps and those inside of them."""
    for step in program:
        yield step
        if step[0] in ("in_pool", "thread"):
            yield from each_step(step[-1])
        elif step[0] == "threads":
            yield from each_step(inner for _, inner in step[1])


def needs(program):
    """The most bytes that its tensors have at a time, if all are served."""
    live, most = {}, 0
    for step in each_step(program):
        name = step[0]
        if name in ("alloc", "fault"):
            live["tensor", step[1]] = step[2]
        elif name == "resize" and ("tensor", step[1]) in live:
            live["tensor", step[1]] = step[2]
        elif name == "free":
            live.pop(("tensor", step[1]), None)
        elif name == "raw":
            live["raw", step[1]] = step[2]
        elif name == "raw_free":
            live.pop(("raw", step[1]), None)
        most = max(most, sum(live.values()))
    return most


def room_of(program, seed):
    """What is left of each device to a starved program: whole handles."""
    share = random.Random(-seed).uniform(*ROOM)
    return max(LEAST_ROOM, int(needs(program) * share) >> 21 << 21)


def without_step(program, path):
    """The program less one step: [i], or [i, j, ...] for one inside of it."""
    first, *rest = path
    if not rest:
        return program[:first] + program[first + 1 :]
    step = program[first]
    if step[0] == "threads":
        inner = [turn for i, turn in enumerate(step[1]) if i != rest[0]]
    else:
        inner = without_step(step[-1], rest)
    return program[:first] + [[*step[:-1], inner]] + program[first + 1 :]


def as_text(program):
    """Steps as lines that can be pasted into a test."""
    return "[\n" + "".join(f"    {step!r},\n" for step in program) + "]"
