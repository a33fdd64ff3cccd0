# SPDX-License-Identifier: Apache-2.0
"""A model 1.4x the card, served by threads.

    python -m tests.system.starved.serving [--threads 1 8 32] [--requests 160]
        [--json FILE]

Each request is a forward of its own input. Beside ours: native on a card on
which the model fits. No request may fail or answer anything else than the
model does alone. Seconds are virtual, of the modelled card, on which threads
take turns as under the interpreter's lock; "wall" is this machine's.
"""

import argparse
import collections
import ctypes
import os
import queue
import sys
import threading
import time

from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote

_RATIO = 1.4
_PARAMETERS = 45 << 20


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.serving", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 8, 32))
    parser.add_argument("--requests", type=int, default=160,
                        help="in all, whatever the number of threads (160)")
    parser.add_argument("--card", default="h200")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    args = parser.parse_args(argv)
    # A card models cuBLAS's workspaces too: 32 MiB per thread on an H200.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "128")
    zygote.prepare(card=args.card)
    rows = []
    for threads in args.threads:
        row = _row(threads, args.requests)
        rows.append(row)
        print(_line(row), flush=True)
    if args.json:
        tables.write_json(args.json, {"card": args.card, "rows": rows})
    return 1 if any(row["error"] for row in rows) else 0


def _inputs(count):
    import torch

    from tests.system.starved import models

    generator = torch.Generator().manual_seed(3)
    return [torch.randint(models.WORDS, (1, models.LENGTH),
                          generator=generator) for _ in range(count)]


def _serve(threads, requests, allocator, capacity):
    """Answers all requests by so many threads; what they took."""
    import torch

    from stratalloc import simulate
    from tests.system.starved import models

    model = models.MODELS["tied"].of_size(_PARAMETERS).eval()
    inputs = _inputs(requests)
    with torch.no_grad():
        rights = [model(value)["logits"] for value in inputs[:16]]
    place.device(capacity, allocator)
    model.cuda()
    waiting = queue.SimpleQueue()
    for number in range(requests):
        waiting.put(number)
    clock = simulate.driver().cudasim_virtual_now_ns
    clock.restype = ctypes.c_int64
    latencies, errors, wrong = [], collections.Counter(), []
    barrier = threading.Barrier(threads + 1)

    def serve():
        barrier.wait()
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            started = clock(), time.monotonic()
            try:
                with torch.no_grad():
                    answer = model(inputs[number].cuda())["logits"].cpu()
            except Exception as error:  # pylint: disable=broad-except
                errors[f"{type(error).__name__}: {error}"[:300]] += 1
                continue
            latencies.append((clock() - started[0],
                              time.monotonic() - started[1]))
            if number < len(rights) and not torch.equal(
                    answer, rights[number]):
                wrong.append(number)

    servers = [threading.Thread(target=serve) for _ in range(threads)]
    for server in servers:
        server.start()
    before = clock()
    started = time.monotonic()
    barrier.wait()
    for server in servers:
        server.join()
    wall = time.monotonic() - started
    virtual = (clock() - before) / 1e9
    return {
        "answered": len(latencies), "errors": dict(errors.most_common()),
        "wrong": len(wrong), "moved": place.moved(),
        "faults": place.faults(), "wall": wall, "virtual": virtual,
        "rate": len(latencies) / virtual if virtual else 0.,
        "wall_rate": len(latencies) / wall,
        "p99": _p99([one for one, _ in latencies]) / 1e9,
        "wall_p99": _p99([other for _, other in latencies]),
        "peak": torch.cuda.max_memory_allocated(),
    }


def _p99(values):
    """The latency that one request in a hundred exceeds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] \
        if ordered else 0.


def _row(threads, requests):
    row = {"threads": threads, "ratio": _RATIO, "error": None}
    try:
        row["native"] = zygote.run(_serve, threads, requests, "native",
                                   1 << 30)
        row["card"] = place.pages(_PARAMETERS / _RATIO)
        row["ours"] = ours = zygote.run(_serve, threads, requests,
                                        "stratalloc", row["card"])
    except (zygote.Refused, zygote.Died) as error:
        row["error"] = str(error)
        return row
    found = [f"{count} x {text}" for text, count in ours["errors"].items()]
    if ours["wrong"] or row["native"]["wrong"]:
        found.append(f"{ours['wrong']} wrong answers, native "
                     f"{row['native']['wrong']}")
    row["error"] = "\n    ".join(found + ours["faults"]) or None
    return row


def _line(row):
    text = f"{'RED ' if row['error'] else ''}{row['threads']} threads"
    if "ours" in row:
        ours, native = row["ours"], row["native"]
        text += (
            f": {ours['answered']} answered, {sum(ours['errors'].values())} "
            f"errors; {ours['rate']:.0f} requests/s against "
            f"{native['rate']:.0f}, p99 {ours['p99'] * 1e3:.2f} against "
            f"{native['p99'] * 1e3:.2f} ms (virtual); "
            f"{ours['wall_rate']:.1f} against {native['wall_rate']:.1f}, "
            f"{ours['wall_p99'] * 1e3:.0f} against "
            f"{native['wall_p99'] * 1e3:.0f} ms (wall); "
            f"in {tables.mib(ours['moved']['in'])} MiB")
    return text + (f"\n    {row['error'][:1500]}" if row["error"] else "")


if __name__ == "__main__":
    sys.exit(main())
