# SPDX-License-Identifier: Apache-2.0
"""Random programs whose every request is asked of explain() first.

One process, one card and one set of budgets (the arguments); many seeds. Each
program allocates, frees, records streams, pins, evicts, limits and enters
MemPools as its seed says. Before it allocates, explain() says what will come
of it; a refusal's remedies are applied and the request is made again. The last
line printed is JSON: how many were asked, refused, certain, wrong.
"""

import argparse
import gc
import json
import random

MIB = 1 << 20


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--card", default="256MiB")
    parser.add_argument("--tiering", default="on")
    parser.add_argument("--gpu-limit", default="0")
    parser.add_argument("--host-budget", default="1GiB")
    parser.add_argument("--disk-budget", default="0")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


OPTIONS = parse()

from stratalloc import simulate  # noqa: E402

simulate.load(OPTIONS.card)

import torch  # noqa: E402

import stratalloc  # noqa: E402

stratalloc.enable(tiering=OPTIONS.tiering == "on",
                  gpu_limit=OPTIONS.gpu_limit,
                  host_budget=OPTIONS.host_budget,
                  disk_budget=OPTIONS.disk_budget)
torch.cuda.init()
CARD = torch.cuda.mem_get_info()[1]
SIZES = (512, 4096, MIB, 4 * MIB, 24 * MIB, 200 * MIB)
SETTINGS = ("expandable_segments:True", "expandable_segments:False",
            "max_split_size_mb:20", "max_split_size_mb:64",
            "expandable_segments:False,max_split_size_mb:20")


class Tally(dict):
    """Numbers by name."""

    def add(self, name, more=1):
        self[name] = self.get(name, 0) + more


class Program:
    """One seed's."""

    def __init__(self, seed, tally):
        self.seed, self.tally = seed, tally
        self.draw = random.Random(seed)
        self.held, self.pinned, self.limits = [], [], []
        self.streams = [torch.cuda.default_stream()] + [
            torch.cuda.Stream() for _ in range(2)]
        self.pools = [torch.cuda.MemPool() for _ in range(2)]
        self.history = []
        self.wrong = []
        text = self.draw.choice(SETTINGS)
        torch._C._accelerator_setAllocatorSettings(text)
        self.say(text)

    def say(self, *what):
        self.history.append(" ".join(map(str, what)))

    def make(self, size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def served(self, size):
        try:
            self.held.append(self.make(size))
            return True
        except torch.OutOfMemoryError as error:
            self.said = str(error)
            return False

    def step(self):
        draw = self.draw
        kind = draw.random()
        if kind < .28 and self.held:
            self.drop(draw.randrange(len(self.held)))
        elif kind < .32 and self.held:
            self.record()
        elif kind < .35 and self.held and OPTIONS.tiering == "on":
            self.pin(draw.choice(self.held))
        elif kind < .37 and self.held and OPTIONS.tiering == "on":
            each = draw.choice(self.held)
            self.say("evict", each.nbytes)
            stratalloc.evict(each)
        elif kind < .40:
            share = draw.choice((1., 1., .8, .5, .3))
            self.say("fraction", share)
            torch.cuda.set_per_process_memory_fraction(share)
        elif kind < .42:
            self.say("empty_cache")
            torch.cuda.empty_cache()
        elif kind < .44:
            size = draw.randrange(CARD)
            self.say("limit", size)
            self.limits.append(stratalloc.limit(size, scope="limited"))
        elif kind < .46 and self.limits:
            self.say("unlimit")
            self.limits.pop().remove()
        else:
            self.ask()

    def drop(self, index):
        each = self.held.pop(index)
        self.say("drop", hex(each.untyped_storage().data_ptr())
                 if OPTIONS.tiering == "off" else "", each.nbytes)
        for pin in [p for p in self.pinned if p is each]:
            stratalloc.unpin(pin)
        self.pinned = [p for p in self.pinned if p is not each]

    def record(self):
        each = self.draw.choice(self.held)
        stream = self.draw.choice(self.streams)
        self.say("record", each.nbytes, self.streams.index(stream))
        each.record_stream(stream)

    def pin(self, each):
        self.say("pin", each.nbytes)
        try:
            stratalloc.pin(each)
        except torch.OutOfMemoryError:  # more than the device has
            return
        self.pinned.append(each)

    def ask(self):
        draw = self.draw
        size = draw.randrange(1, draw.choice(SIZES))
        stream = draw.choice(self.streams)
        pool = draw.choice((None, None, None, *self.pools))
        scope = draw.choice(("", "", "limited"))
        with torch.cuda.stream(stream), \
                torch.cuda.use_mem_pool(pool) if pool else _nothing(), \
                stratalloc.scope(scope) if scope else _nothing():
            self.compare(size, (self.streams.index(stream),
                                pool and self.pools.index(pool), scope))

    def compare(self, size, where):
        said = stratalloc.explain(size)
        served = self.served(size)
        self.say("ask", size, where, said.served_by, said.certain, served)
        tally = self.tally
        tally.add("asked")
        tally.add(said.served_by)
        tally.add("certain", said.certain)
        tally.add("refused", not served)
        if served != said.fits:
            tally.add("wrong")
            tally.add("wrong and certain", said.certain)
            self.wrong.append((len(self.history), "verdict", size, where,
                               said.to_dict(), self.said if not served else ""))
            return
        if not served:
            self.remedies(size, where, said)

    def remedies(self, size, where, said):
        if said.frees:
            self.tally.add("frees")
            ends = {block["address"] for block in said.frees}
            if not self.free(ends):
                self.tally.add("frees not ours")
            elif not self.served(size):
                self.tally.add("frees in vain")
                self.wrong.append((len(self.history), "frees", size, where,
                                   said.to_dict(), self.said))
        elif said.limit_helps and said.room_needed <= said.room_below:
            self.tally.add("limit helps")
            if OPTIONS.gpu_limit != "0":
                return
            share = torch.cuda.get_per_process_memory_fraction()
            torch.cuda.set_per_process_memory_fraction(
                min(1.0, share + (said.missing + 1) / CARD))
            if not self.served(size):
                self.tally.add("limit in vain")
                self.wrong.append((len(self.history), "limit", size, where,
                                   said.to_dict(), self.said))
            torch.cuda.set_per_process_memory_fraction(share)

    def free(self, ends):
        found = [i for i, each in enumerate(self.held)
                 if each.untyped_storage().data_ptr() in ends]
        for index in reversed(found):
            self.drop(index)
        return len(found) == len(ends)

    def end(self):
        for limit in self.limits:
            limit.remove()
        for each in self.pinned:
            stratalloc.unpin(each)
        self.held.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.pools.clear()
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


def main():
    tally = Tally()
    wrong = []
    for seed in range(OPTIONS.first, OPTIONS.first + OPTIONS.seeds):
        program = Program(seed, tally)
        for _ in range(OPTIONS.steps):
            program.step()
        for at, *rest in program.wrong:
            wrong.append((seed, at, *rest))
            if OPTIONS.verbose:
                print(seed, at, *rest)
        if OPTIONS.verbose and program.wrong:
            print("\n".join(program.history))
        program.end()
    print(json.dumps({**tally, "faults": wrong}))


if __name__ == "__main__":
    main()
