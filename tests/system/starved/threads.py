# SPDX-License-Identifier: Apache-2.0
"""Threads whose operators fit the card one at a time, but not together.

    python -m tests.system.starved.threads [--programs pair,...] [--seconds 5]
        [--json FILE]

Counts operators and errors by message; there may be no error, and every
result is the one that the same operands gave alone.
"""

import argparse
import collections
import re
import sys
import threading
import time

from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote

MIB = 1 << 20


class Tally:
    """What several threads did: passes, errors by message, wrong results."""

    def __init__(self):
        self._lock = threading.Lock()
        self.passes = self.wrong = 0
        self.errors = collections.Counter()

    def loop(self, work, right, enough):
        """Runs work until enough(passes of this thread) says so."""
        done = 0
        while not enough(done):
            done += 1
            try:
                value = work()
            except Exception as error:  # pylint: disable=broad-except
                with self._lock:
                    self.errors[_message(error)] += 1
                continue
            with self._lock:
                self.passes += 1
                self.wrong += value != right

    def result(self):
        return {"passes": self.passes, "wrong": self.wrong,
                "errors": dict(self.errors.most_common())}


def _message(error):
    """The text without its figures, so that the same ones count together."""
    text = f"{type(error).__name__}: {error}"
    return re.sub(r"\d+(\.\d+)?", "#", text)[:400]


def _together(works, seconds, passes):
    """Each work in a thread of its own, started at once; a Tally."""
    tally = Tally()
    barrier = threading.Barrier(len(works))
    rights = [work() for work in works]  # alone, one after the other

    def run(work, right):
        barrier.wait()
        until = time.monotonic() + seconds
        tally.loop(work, right, lambda done: (
            done >= passes if passes else time.monotonic() > until))

    threads = [threading.Thread(target=run, args=pair)
               for pair in zip(works, rights)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally.result() | {"moved": place.moved(),
                             "faults": place.faults()}


def _stacks(number, size, seed):
    """Stacks of 128 x 128 matrices of `size` bytes, outside any scope.

    Small whole numbers, whose products have no rounding; stacked, because a
    product of two large matrices would keep the CPU busy and not the card.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = (size // (4 * 128 * 128), 128, 128)
    return [torch.randint(-2, 3, shape, generator=generator).float().cuda()
            for _ in range(number)]


def _bare(left, right, products=1):
    """Products of two stacks, each three times a stack's bytes in all.

    Waits for the device (item) after so many of them. The last product is kept
    until the next one is made: all threads' tensors together exceed the card
    even when the scheduler runs one thread after the other.
    """
    import torch

    kept = []

    def work():
        with torch.no_grad():
            for _ in range(products):
                kept[:] = [left @ right]
            return kept[0].sum().item()
    return work


def pair(seconds, passes):
    """Two threads, plain matrices, 36 MiB of operands each on 64 MiB."""
    place.device(64 * MIB)
    works = [_bare(*_stacks(2, 12 * MIB, seed)) for seed in range(2)]
    return _together(works, seconds, passes)


def pair_without_items(seconds, passes):
    """The same, waiting for the device after each tenth product only."""
    place.device(64 * MIB)
    works = [_bare(*_stacks(2, 12 * MIB, seed), 10) for seed in range(2)]
    return _together(works, seconds, passes)


def pair_of_modules(seconds, passes):
    """The same with modules, whose weights have an owner."""
    import torch

    class Product(torch.nn.Module):
        """A stack times its own; keeps the last product, as _bare does."""

        def __init__(self, stack):
            super().__init__()
            self.weight = torch.nn.Parameter(stack)
            self.product = None

        def forward(self, value):
            self.product = value @ self.weight
            return self.product

    place.device(64 * MIB)
    works = []
    for seed in range(2):
        weight, value = _stacks(2, 12 * MIB, seed)
        module = Product(weight.cpu()).cuda()
        del weight

        def work(module=module, value=value):
            with torch.no_grad():
                return module(value).sum().item()
        works.append(work)
    return _together(works, seconds, passes)


def many(seconds, passes):
    """32 threads with 10 MiB of operands each on 128 MiB."""
    place.device(128 * MIB)
    works = [_bare(*_stacks(2, 10 * MIB // 3, seed)) for seed in range(32)]
    return _together(works, seconds, passes)


def addresses(seconds, passes):
    """Three threads add what lies on 72 MiB, on a card of 48 MiB; three ask for
    addresses there, as launches of Triton and comparisons of storages do."""
    import torch

    place.device(48 * MIB)
    tensors = _stacks(18, 4 * MIB, 0)
    right = [tensor.data_ptr() for tensor in tensors]

    def adding(step):
        def work():
            return torch.stack([
                torch.add(tensors[i * step % 18], tensors[(i + step) % 18]).sum()
                for i in range(18)]).cpu().tolist()
        return work

    def asking(step):
        def work():
            return all(tensors[i * step % 18].data_ptr() == right[i * step % 18]
                       for i in range(180))
        return work
    return _together([kind(step) for kind in (adding, asking)
                      for step in (1, 5, 7)], seconds, passes)


def data_parallel(seconds, passes):
    """DataParallel trains on two devices, each with 1/1.2 of its need."""
    return _data_parallel(seconds, passes, (1.2, 1.2))


def data_parallel_first(seconds, passes):
    """The same, but only the first device, which has the state, is too small.

    What the second has are copies of weights and their gradients, made anew
    in every step.
    """
    return _data_parallel(seconds, passes, (1.2, .5))


def _data_parallel(seconds, passes, ratios):
    import torch

    from tests.system.starved import models

    def train(capacity, allocator):
        place.device(capacity, allocator)
        torch.manual_seed(0)
        model = models.Plain(layers=6)
        model = torch.nn.DataParallel(model.cuda(), device_ids=[0, 1])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=.9)
        tally = Tally()
        until = time.monotonic() + seconds
        generator = torch.Generator().manual_seed(1)
        losses = []

        def step():
            words = torch.randint(models.WORDS, (4, models.LENGTH),
                                  generator=generator).cuda()
            optimizer.zero_grad()
            loss = model(words, words)["loss"].mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        tally.loop(step, None, lambda done: (
            done >= (passes or 3) or time.monotonic() > until + 60))
        return tally.result() | {
            "losses": losses, "moved": place.moved(),
            "faults": place.faults(),
            "peaks": [torch.cuda.max_memory_allocated(device)
                      for device in range(2)]}

    # The yardstick is torch's own allocator. One run in some fifty has an error
    # in a step of its own there, and then it is none: asked again, and told.
    for _ in range(3):
        unstarved = zygote.run(train, 4096 * MIB, "native")
        if not unstarved["errors"]:
            break
        print(f"the unstarved run failed: {unstarved['errors']}", flush=True)
    result = train([place.pages(peak / ratio) for peak, ratio in zip(
        unstarved["peaks"], ratios)], "stratalloc")
    result["wrong"] = sum(one != other for one, other in zip(
        result["losses"], unstarved["losses"]))
    result["how"] = f": {result['losses']}, not {unstarved['losses']}"
    return result


PROGRAMS = {
    "pair": pair,
    "pair_without_items": pair_without_items,
    "pair_of_modules": pair_of_modules,
    "many": many,
    "addresses": addresses,
    "data_parallel": data_parallel,
    "data_parallel_first": data_parallel_first,
}


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.threads", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", help="names with commas between them")
    parser.add_argument("--seconds", type=float, default=5.,
                        help="how long threads go on (5)")
    parser.add_argument("--passes", type=int, default=0,
                        help="so many passes per thread, however long")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    args = parser.parse_args(argv)
    names = args.programs.split(",") if args.programs else list(PROGRAMS)
    zygote.prepare(devices=2)
    rows = {}
    for name in names:
        rows[name] = row = _row(PROGRAMS[name], args)
        print(f"{'RED ' if row['error'] else ''}{name}: "
              f"{row.get('passes', 0)} passes, "
              f"{sum(row.get('errors', {}).values())} errors, "
              f"{row.get('wrong', 0)} wrong, {row['seconds']:.1f} s"
              + (f"\n    {row['error'][:1500]}" if row["error"] else ""),
              flush=True)
    if args.json:
        tables.write_json(args.json, rows)
    return 1 if any(row["error"] for row in rows.values()) else 0


def _row(program, args):
    started = time.monotonic()
    try:
        row = zygote.run(program, args.seconds, args.passes)
        found = [f"{count} x {text}" for text, count in row["errors"].items()]
        if row["wrong"]:
            found.append(f"{row['wrong']} wrong results{row.get('how', '')}")
        if not row["moved"]["in"]:
            found.append("nothing moved: the threads had room")
        row["error"] = "\n    ".join(found + row["faults"]) or None
    except (zygote.Refused, zygote.Died) as error:
        row = {"error": str(error), "trace": getattr(error, "trace", None)}
    row["seconds"] = time.monotonic() - started
    return row


if __name__ == "__main__":
    sys.exit(main())
