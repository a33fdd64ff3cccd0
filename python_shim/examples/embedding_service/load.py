# SPDX-License-Identifier: Apache-2.0
"""Loads a running service for a while, and says how it held:

    python load.py http://127.0.0.1:8000 --clients 4 --seconds 600

First each list of texts is asked for by itself: its embeddings must be the
CPU's, which this program computes. Then clients ask without pause; batches are
the service's choice now, and sums in another order may differ in the last bits.
Of the first --warm seconds only what fails is counted: libraries keep something
for each shape that they meet.
Memory is what /metrics tells each second. It is flat if the median of the last
tenth of the time is at most 4 MiB above that of the second tenth, in the
process as in what its allocator holds on the card and in pinned memory.

Exit codes: 0 fine; 1 an error, embeddings that differ, or memory that grows.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import time

import httpx2
import rich.console
import rich.table

_MOST_GROWTH = 4 << 20  # bytes
_SAMPLES = 40  # fewer have no tenths to speak of
_MEMORY = {  # what people read -> the series
    "process": "process_resident_memory_bytes",
    "device, reserved": 'stratalloc_memory_reserved_bytes{device="0",'
                        'tier="device"}',
    "device, peak": 'stratalloc_memory_peak_reserved_bytes{device="0"}',
    "host, pinned": 'stratalloc_tier_reserved_bytes{tier="host"}',
}
_MOVED = r'stratalloc_tier_moved_bytes_total\{.*source="(\w+)",target="(\w+)"\}'
_WORDS = ("an old wolf", "the night train", "her second letter", "a warm disk",
          "this small town", "the last teacher", "some green paint", "rain",
          "came back to", "never reached", "waited for", "was lost behind",
          "the woods", "a bridge of stone", "everybody's table", "the sea")


def requests(count, seed=0):
    """`count` lists of one to four sentences, the same for a seed."""
    chance = random.Random(seed)
    return [[" ".join(chance.choices(_WORDS, k=chance.randint(2, 12))) + "."
             for _ in range(chance.randint(1, 4))] for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm", type=float, default=0, metavar="SECONDS",
                        help="before these, of which nothing is measured (0)")
    parser.add_argument("--lists", type=int, default=16,
                        help="different lists of texts that are asked for (16)")
    parser.add_argument("--tolerance", type=float, default=1e-5,
                        help="by which an embedding may differ (1e-5)")
    parser.add_argument("--json", metavar="FILE", help="the result, as JSON")
    args = parser.parse_args()
    found = asyncio.run(Load(args).run())
    if args.json:
        with open(args.json, "w", encoding="utf-8",
                  opener=lambda *of: os.open(*of, 0o600)) as file:
            json.dump(found, file, indent=1)
    _show(found)
    return 1 if found["faults"] else 0


class Load:
    def __init__(self, args):
        import model  # torch, a few seconds

        self._args, self._lists = args, requests(args.lists)
        embed = model.Embedder("cpu")
        self._truth = [embed(texts) for texts in self._lists]
        self._seconds, self._errors, self._samples = [], {}, []
        self._furthest = 0.0

    async def run(self):
        async with httpx2.AsyncClient(base_url=self._args.url,
                                      timeout=60) as client:
            for number in range(len(self._lists)):
                await self._ask(client, number)
            alone, self._furthest = self._furthest, 0.0
            await self._together(client, self._args.warm)
            self._seconds = []
            began = time.monotonic()
            sampling = asyncio.create_task(
                self._sample(client, began, began + self._args.seconds))
            await self._together(client, self._args.seconds)
            await sampling
            lasted = time.monotonic() - began
        return _result(self._args, lasted, self._seconds, self._errors,
                       self._samples, (alone, self._furthest))

    async def _together(self, client, seconds):
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for seed in range(self._args.clients):
                group.create_task(self._client(client, seed, until))

    async def _client(self, client, seed, until):
        chance = random.Random(seed)
        while time.monotonic() < until:
            await self._ask(client, chance.randrange(len(self._lists)))

    async def _ask(self, client, number):
        began = time.monotonic()
        try:
            answer = await client.post("/embed",
                                       json={"texts": self._lists[number]})
            if answer.status_code != 200:
                raise ValueError(f"{answer.status_code}: {answer.text[:500]}")
            self._compare(answer.json()["embeddings"], self._truth[number])
        except (httpx2.HTTPError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
            self._errors[text] = self._errors.get(text, 0) + 1
        else:
            self._seconds.append(time.monotonic() - began)

    def _compare(self, found, truth):
        if [*map(len, found)] != [*map(len, truth)]:
            raise ValueError("embeddings of another shape")
        apart = max(abs(one - other) for row, right in zip(found, truth)
                    for one, other in zip(row, right))
        self._furthest = max(self._furthest, apart)
        if not apart <= self._args.tolerance:  # not a number, too
            raise ValueError("embeddings differ from the CPU's by more than "
                             f"{self._args.tolerance:g}")

    async def _sample(self, client, began, until):
        pause = min(1, self._args.seconds / 50)
        while time.monotonic() < until:
            try:
                answer = await client.get("/metrics")
                answer.raise_for_status()
                values = dict(line.rsplit(" ", 1) for line in
                              answer.text.splitlines() if line[:1] != "#")
            except httpx2.HTTPError as error:
                text = f"/metrics: {type(error).__name__}: {error}"
                self._errors[text] = self._errors.get(text, 0) + 1
            else:
                row = {name: int(float(values[series]))
                       for name, series in _MEMORY.items() if series in values}
                for series, value in values.items():
                    if way := re.fullmatch(_MOVED, series):
                        row[f"{way[1]} to {way[2]}"] = int(float(value))
                row["seconds"] = round(time.monotonic() - began, 2)
                self._samples.append(row)
            await asyncio.sleep(pause)


def _result(args, lasted, seconds, errors, samples, apart):
    seconds = sorted(seconds)
    memory = {name: _over_time(samples, name) for name in _MEMORY
              if samples and name in samples[0]}
    moved = {name: samples[-1][name] - samples[0][name]
             for name in (samples[-1] if samples else ()) if " to " in name}
    faults = [f"{count} × {text}" for text, count in errors.items()]
    faults += [f"{name} grew by {one['growth']} bytes"
               for name, one in memory.items() if one["flat"] is False]
    if not samples:
        faults.append("/metrics told nothing")
    return {
        "clients": args.clients, "warm_seconds": args.warm, "seconds": lasted, "requests": len(seconds),
        "requests_per_second": len(seconds) / lasted,
        "p50_seconds": _percentile(seconds, .50),
        "p99_seconds": _percentile(seconds, .99),
        "errors": sum(errors.values()), "furthest_alone": apart[0],
        "furthest_under_load": apart[1], "memory": memory, "moved": moved,
        "samples": samples, "faults": faults}


def _percentile(ordered, share):
    """Of a sorted list, the least that so many are not above."""
    if not ordered:
        return None
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _over_time(samples, name):
    """What the rule in this file's head says of one series."""
    values = [row[name] for row in samples]
    tenth = len(values) // 10
    if len(values) < _SAMPLES:
        return {"most": max(values), "last": values[-1], "growth": None,
                "flat": None}
    growth = int(statistics.median(values[-tenth:])
                 - statistics.median(values[tenth:2 * tenth]))
    return {"most": max(values), "last": values[-1], "growth": growth,
            "flat": growth <= _MOST_GROWTH}


def _show(found):
    table = rich.table.Table(title=f"{found['clients']} clients, "
                             f"{found['seconds']:.0f} s")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("requests", f"{found['requests']}")
    table.add_row("a second", f"{found['requests_per_second']:.1f}")
    for name in ("p50", "p99"):
        if found[name + "_seconds"] is not None:
            table.add_row(name, f"{found[name + '_seconds'] * 1e3:.0f} ms")
    table.add_row("errors", f"{found['errors']}")
    table.add_row("furthest from the CPU, alone", f"{found['furthest_alone']:g}")
    table.add_row("under load", f"{found['furthest_under_load']:.1e}")
    for name, one in found["memory"].items():
        flat = {True: "flat", False: "GROWS", None: "too short to tell"}
        table.add_row(name, f"{one['most'] / 2**20:.1f} MiB at most, "
                      f"{flat[one['flat']]}")
    for way, size in found["moved"].items():
        table.add_row(way, f"{size / 2**20:.0f} MiB")
    rich.console.Console().print(table)
    for fault in found["faults"]:
        print(fault, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
