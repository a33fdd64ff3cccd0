# SPDX-License-Identifier: Apache-2.0
"""Runs made by a slow, obvious allocator, which knows what is true of them.

The reference model of telemetry's tests: blocks are a dict, and after each
event it notes what its sums are.
"""

import dataclasses
import random

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind

MIB = 1 << 20
HOSTILE = ("a<script>alert(1)</script>", 'say "hi"', "line\nbreak", "🔥 fire",
           "nul\x00byte", "lone \ud800 surrogate", "n" * 10240, "a;b{c=\"d\"}",
           "back\\slash", "{}[]`$(rm)", "token_start", "</title>&amp;")


@dataclasses.dataclass
class Living:
    address: int
    size: int
    requested: int
    scope: int
    category: int
    site: int
    pool: int
    pending: bool = False


class Maker:
    """Makes a Run event by event; `sums` has (allocated, active, requested,
    reserved) of the device after each."""

    def __init__(self, names=("net", "net.0", "net.0.mlp", "net.1"), device=0,
                 started=1_700_000_000_000_000_000, sizes=True):
        self.run = model.Run(started=started)
        self.run.scopes += list(names)
        self.run.sites += [
            model.Site("/p/train.py", 10, "main"),
            model.Site("/p/net.py", 20, "forward", 1),
            model.Site("/p/net.py", 33, "attend", 2)]
        self.run.pools.append(model.Pool(device, 7))
        self.run.threads.append("autograd")
        self.device, self.sizes = device, sizes
        self.events, self.sums = [], []
        self.living, self.segments = {}, {}
        self.time = 0
        self.next = 0x7000_0000_0000 + (device << 40)
        self.stack = []

    def put(self, kind, address=0, size=0, aux=0, scope=0, site=0, category=0,
            pool=1, flags=0, thread=0):
        self.time += 1000
        self.events.append((self.time, address, size, aux, scope, site, pool,
                            thread, kind, category, self.device, flags))
        self.sums.append(self.now())

    def now(self):
        live = self.living.values()
        return (sum(b.size for b in live if not b.pending),
                sum(b.size for b in live), sum(b.requested for b in live),
                sum(size for size, _ in self.segments.values()))

    def holders(self):
        """{(scope, category, site): bytes}, now."""
        found = {}
        for b in self.living.values():
            if not b.pending:
                key = (b.scope, b.category, b.site)
                found[key] = found.get(key, 0) + b.size
        return found

    def enter(self, scope, thread=0):
        self.stack.append((scope, thread))
        self.put(Kind.SCOPE_ENTER, scope=scope, thread=thread)

    def leave(self):
        scope, thread = self.stack.pop()
        self.put(Kind.SCOPE_LEAVE, scope=scope, thread=thread)

    def segment(self, size, expandable=False):
        address, self.next = self.next, self.next + size + (
            0 if expandable else 64 * MIB)
        self.segments[address] = (size, expandable)
        self.put(Kind.SEGMENT_MAP if expandable else Kind.SEGMENT_ALLOC,
                 address, size)
        return address

    def drop_segment(self, address):
        size, expandable = self.segments.pop(address)
        self.put(Kind.SEGMENT_UNMAP if expandable else Kind.SEGMENT_FREE,
                 address, size)

    def hole(self, size):
        for address, (length, _) in sorted(self.segments.items()):
            at = address
            for b in sorted(self.living.values(), key=lambda b: b.address):
                if not address <= b.address < address + length:
                    continue
                if b.address - at >= size:
                    return at
                at = b.address + b.size
            if address + length - at >= size:
                return at
        return None

    def alloc(self, requested, scope=0, category=0, site=0):
        size = max(512, -(-requested // 512) * 512)
        at = self.hole(size)
        if at is None:
            at = self.segment(max(2 * MIB, size))
        b = Living(at, size, requested, scope, category, site, 1)
        self.living[at] = b
        self.put(Kind.ALLOC, at, requested, size if self.sizes else 0, scope,
                 site, category)
        return at

    def free(self, at, complete=True):
        b = self.living[at]
        b.pending = True
        self.put(Kind.FREE_REQUESTED, at, b.requested,
                 b.size if self.sizes else 0, b.scope, b.site, b.category)
        if complete:
            self.complete(at)

    def complete(self, at):
        b = self.living.pop(at)
        self.put(Kind.FREE_COMPLETED, at, b.requested,
                 b.size if self.sizes else 0, b.scope, b.site, b.category)

    def relabel(self, at, scope, category):
        b = self.living[at]
        b.scope, b.category = scope, category
        self.put(Kind.RELABEL, at, b.requested, b.size if self.sizes else 0,
                 scope, b.site, category)

    def snapshot(self):
        """Tuple of Segment, now."""
        found = []
        for address, (length, expandable) in sorted(self.segments.items()):
            parts, at = [], address
            for b in sorted(self.living.values(), key=lambda b: b.address):
                if not address <= b.address < address + length:
                    continue
                if b.address > at:
                    parts.append(model.Block(at, b.address - at, 0, model.FREE))
                parts.append(model.Block(
                    b.address, b.size, b.requested,
                    model.PENDING if b.pending else model.ACTIVE, b.scope,
                    b.category, b.site))
                at = b.address + b.size
            if at < address + length:
                parts.append(model.Block(at, address + length - at, 0,
                                         model.FREE))
            found.append(model.Segment(address, length, 1, expandable, False,
                                       tuple(parts)))
        return tuple(found)

    def finish(self, first=0):
        """The Run; first > 0: its first events were dropped."""
        while self.stack:
            self.leave()
        run = self.run
        run.events = np.array(self.events[first:], model.EVENT)
        run.duration = self.time + 1000
        run.dropped = first
        now = self.now()
        stats = {f"{name}_bytes.all.current": value for name, value in zip(
            ("allocated", "active", "requested", "reserved"), now)}
        peaks = [max(column, default=0) for column in zip(*self.sums)]
        stats.update({f"{name}_bytes.all.peak": value for name, value in zip(
            ("allocated", "active", "requested", "reserved"), peaks)})
        # Counters go on over recordings: what was before is not the run's.
        freed = sum(one[8] == Kind.FREE_REQUESTED for one in self.events)
        before = {"num_alloc_retries": 4, "allocation.all.freed": 100}
        stats.update({"num_alloc_retries": 7,
                      "allocation.all.freed": 100 + freed})
        run.devices = [model.Device(self.device, "card", 1 << 34, (),
                                    self.snapshot(), stats, before=before)]
        return run


def called(count, depth):
    """A Run with a block each of so many lines that such a stack called, the
    later the larger, and the smallest of no stack."""
    maker = Maker()
    first = len(maker.run.sites)
    maker.run.sites += [model.Site(f"/p/{i}.py", 1 + i, "g", first + i - 1
                                   if i else 0) for i in range(depth)]
    last = len(maker.run.sites) - 1
    maker.run.sites += [model.Site("/p/own.py", 1 + i, "f", last)
                        for i in range(count)]
    maker.alloc(512, 1, 1)
    for i in range(count):
        maker.alloc(512 * (2 + i), 1, 1, last + 1 + i)
    return maker.finish()


def make(seed=0, steps=200, first=0, totals=True, sizes=True, tiering=False,
         **kwargs):
    """(Run, Maker): a random program; `tiering`: with moves, owners that change
    and requests in vain."""
    chance = random.Random(seed)
    maker = Maker(sizes=sizes, **kwargs)
    names = len(maker.run.scopes)
    for _ in range(steps):
        what = chance.random()
        live = [a for a, b in maker.living.items() if not b.pending]
        pending = [a for a, b in maker.living.items() if b.pending]
        if tiering and chance.random() < .2:
            _something_of_tiering(maker, chance, [*live, *pending])
        if what < .5:
            scope = maker.stack[-1][0] if maker.stack else 0
            maker.alloc(int(2 ** chance.uniform(0, 22)), scope,
                        chance.randrange(len(model.CATEGORIES)),
                        chance.randrange(4))
        elif what < .8 and live:
            maker.free(chance.choice(live), chance.random() < .8)
        elif what < .85 and pending:
            maker.complete(chance.choice(pending))
        elif what < .9 and len(maker.stack) < 5:
            maker.enter(chance.randrange(1, names))
        elif what < .95 and maker.stack:
            maker.leave()
        elif what < .97:
            empty = [a for a, (size, _) in maker.segments.items() if not any(
                a <= b < a + size for b in maker.living)]
            if empty:
                maker.drop_segment(chance.choice(empty))
        elif totals and what < .985:
            allocated, _, _, reserved = maker.now()
            maker.put(Kind.TOTALS, allocated, reserved)
        else:
            maker.put(Kind.MARK, scope=chance.randrange(1, names))
    return maker.finish(first), maker


def _something_of_tiering(maker, chance, blocks):
    what = chance.randrange(4)
    if what == 0 and blocks:
        maker.relabel(chance.choice(blocks), chance.randrange(4),
                      chance.randrange(len(model.CATEGORIES)))
    elif what == 1:
        maker.put(Kind.MOVE, 2 * MIB * chance.randrange(1, 9),
                  2 * MIB * chance.randrange(1, 3), 50,
                  category=model.move(*chance.sample(range(3), 2)))
    elif what == 2:
        maker.put(Kind.DROPPED, 0, 2 * MIB, category=chance.randrange(1, 3))
    elif what == 3:
        maker.put(Kind.OOM, 0, 1 << 40)


def many(events, seed=1, marks=0):
    """A Run of about so many events, made fast: blocks of a ring of slots, and
    as many marks in between."""
    chance = np.random.default_rng(seed)
    pairs = events // 3
    slots = 5000
    run = model.Run(started=1_700_000_000_000_000_000)
    run.scopes += [f"net.layers.{i}.{part}" for i in range(48)
                   for part in ("attention", "mlp")]
    run.sites += [model.Site("/p/net.py", i, f"f{i}", i - 1 if i % 9 else 0)
                  for i in range(1, 400)]
    run.pools.append(model.Pool(0, 0))
    size = (1 << 21)
    base = 0x7000_0000_0000
    out = np.zeros(pairs * 3 + slots + marks, model.EVENT)
    marked = set(np.linspace(0, pairs - 1, marks).astype(int).tolist())
    requested = chance.integers(1, size, pairs)
    scope = chance.integers(1, len(run.scopes), pairs)
    site = chance.integers(1, len(run.sites), pairs)
    category = chance.integers(0, len(model.CATEGORIES), pairs)
    slot = np.arange(pairs) % slots
    address = base + slot * size
    at, live = 0, {}
    # Segments first, then each slot is freed right before it is used again.
    for i in range(slots):
        out[i] = (i, base + i * size, size, 0, 0, 0, 1, 0,
                  Kind.SEGMENT_ALLOC, 0, 0, 0)
    at = slots
    for i in range(pairs):
        old = live.get(slot[i])
        if old is not None:
            for kind in (Kind.FREE_REQUESTED, Kind.FREE_COMPLETED):
                out[at] = (at, address[old], requested[old], 0, scope[old],
                           site[old], 1, 0, kind, category[old], 0, 0)
                at += 1
        live[slot[i]] = i
        if i in marked:
            out[at] = (at, 0, 0, 0, 1, 0, 0, 0, Kind.MARK, 0, 0, 0)
            at += 1
        out[at] = (at, address[i], requested[i], 0, scope[i], site[i], 1, 0,
                   Kind.ALLOC, category[i], 0, 0)
        at += 1
    run.events = out[:at]
    run.events["time"] *= 1000
    run.duration = at * 1000
    sizes = np.maximum((requested + 511) // 512 * 512, 512)
    segments = []
    for i in range(slots):
        a, k = base + i * size, live.get(i)
        parts = []
        used = 0
        if k is not None:
            used = int(sizes[k])
            parts.append(model.Block(a, used, int(requested[k]), model.ACTIVE,
                                     int(scope[k]), int(category[k]),
                                     int(site[k])))
        if used < size:
            parts.append(model.Block(a + used, size - used, 0, model.FREE))
        segments.append(model.Segment(a, size, 1, blocks=tuple(parts)))
    run.devices = [model.Device(0, "card", 80 << 30, (), tuple(segments))]
    return run


def story(names=("net", "net.0", "net.0.mlp", "net.1"), name="card"):
    """A small run in which everything happens once: the golden files' own."""
    maker = Maker(names)
    maker.run.about.update(stratalloc="1.2.3", torch="2.11.0",
                           command="train.py")
    maker.run.classes[2] = "torch.nn.Linear"
    maker.enter(1)
    maker.segment(4 * MIB, expandable=True)
    weight = maker.alloc(1_000_000, 1, 1, 3)
    maker.put(Kind.MARK, scope=4)
    maker.enter(2)
    given_up = maker.alloc(3_000, 2, 7, 2)
    maker.enter(3)
    maker.alloc(2_000_000, 3, 5, 3)
    waits = maker.alloc(700, 3, 3, 0)
    maker.leave()
    maker.free(given_up)
    maker.leave()
    maker.put(Kind.OOM, 5 * MIB, 1 << 40, scope=1)
    maker.free(waits, complete=False)
    maker.put(Kind.MOVE, weight, 2 * MIB, 900, 1, category=model.move(0, 1))
    maker.put(Kind.LATE, 0, 2 * MIB, 400, 1)
    maker.put(Kind.MOVE, weight, 2 * MIB, 800, 1, category=model.move(1, 0))
    maker.put(Kind.MOVE, weight + 2 * MIB, 2 * MIB, 900, 1,
              category=model.move(0, 1))
    maker.put(Kind.STALL, 0, 0, 400, 1)
    for source, to in ((0, 1), (1, 2)):
        maker.put(Kind.MOVE, weight + 4 * MIB, MIB, 700, 1,
                  category=model.move(source, to))
    maker.put(Kind.DROPPED, weight + 4 * MIB, MIB, category=2)
    allocated, _, _, reserved = maker.now()
    maker.put(Kind.TOTALS, allocated, reserved)
    maker.put(Kind.MARK, scope=4)
    maker.leave()
    run = maker.finish()
    run.devices[0].name = name
    return run


def devices():
    """story(), and another device beside it."""
    run, other = story(), Maker(device=3)
    other.alloc(10_000, 2, 1, 1)
    more = other.finish()
    run.events = np.concatenate([run.events, more.events])
    run.events["time"] = np.sort(run.events["time"])
    run.devices += more.devices
    return run


def hostile():
    """story(), with names that nobody would choose, wherever a name can be."""
    run = story(HOSTILE, HOSTILE[0])
    run.sites = [run.sites[0], *(
        model.Site(HOSTILE[i % len(HOSTILE)], i, HOSTILE[-i % len(HOSTILE)],
                   one.below) for i, one in enumerate(run.sites[1:], 1))]
    run.threads = [HOSTILE[1], HOSTILE[5]]
    run.classes = {i: name for i, name in enumerate(HOSTILE, 1)}
    run.about["command"] = HOSTILE[3] + HOSTILE[4] + HOSTILE[5]
    run.settings = {HOSTILE[1]: HOSTILE[5]}
    blocks = (run.events["kind"] <= Kind.FREE_COMPLETED) | (
        run.events["kind"] == Kind.MARK)
    run.events["scope"][blocks] = 1 + np.flatnonzero(blocks) % len(HOSTILE)
    run.devices[0].end = tuple(
        dataclasses.replace(one, blocks=tuple(
            dataclasses.replace(block, scope=0) for block in one.blocks))
        for one in run.devices[0].end)
    return run
