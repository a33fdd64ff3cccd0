# SPDX-License-Identifier: Apache-2.0
"""A training that a real Prometheus scrapes, for as long as one likes:

    python -m tests.system.e2e.metrics_hour --minutes 60

On the simulated device, with more weights than the card has room for, a step
each half second. At the end it tells how many scrapes there were and what each
cost (by Prometheus's own clock), what this process took of the machine's memory
in the second and the last tenth of the time, and how many series there were
then. Of its memory that is the least that it had in that time without files and
shared memory: the training's own temporaries go up and down by 8 MiB.

Exit codes: 0 fine; 1 a scrape failed, series came or went after the first tenth
of the time, or memory grew by more than 4 MiB; 3 there is no prometheus here.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.parse
import urllib.request

_MOST_GROWTH = 4 << 20
_CONFIG = """
global:
  scrape_interval: {interval}s
  scrape_timeout: {interval}s
scrape_configs:
  - job_name: train
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--interval", type=int, default=5,
                        help="seconds between two scrapes (5)")
    parser.add_argument("--prometheus", default=shutil.which("prometheus") or
                        shutil.which("prometheus",
                                     path=sysconfig.get_path("scripts")),
                        help="the server's program")
    args = parser.parse_args()
    if not args.prometheus:
        print("there is no prometheus here: `apt-get install prometheus`, or "
              "name the program by --prometheus", file=sys.stderr)
        return 3
    from stratalloc import simulate

    simulate.load("32MiB")
    import torch

    import stratalloc

    with tempfile.TemporaryDirectory() as folder:
        stratalloc.enable(host_budget="48MiB", disk_budget="64MiB",
                          disk_dir=folder)
        train = _Training(torch)
        train.step()
        with stratalloc.serve_metrics() as server:
            with _Prometheus(args, server.port, folder) as prometheus:
                found = _watch(args, train, prometheus)
    print(json.dumps(found, indent=2))
    for one in found["faults"]:
        print(one, file=sys.stderr)
    return 1 if found["faults"] else 0


class _Training:
    def __init__(self, torch):
        self._torch = torch
        self._chance = random.Random(1)
        self._layers = [type("Wide", (torch.nn.Sequential,), {})(
            torch.nn.Linear(1024, 512, bias=False)).cuda() for _ in range(30)]
        self._optimizer = torch.optim.SGD(
            [one for layer in self._layers for one in layer.parameters()],
            lr=1e-6)
        self.steps = 0

    def step(self):
        for layer in self._chance.sample(self._layers, 2):
            layer(self._torch.ones(4, 1024, device="cuda")).sum().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps += 1


class _Prometheus:
    """A server of its own, in a folder of its own, for this machine alone."""

    def __init__(self, args, port, folder):
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(_CONFIG.format(interval=args.interval, port=port))
        self._log = open(os.path.join(folder, "log"), "wb")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._process = subprocess.Popen(
            [args.prometheus, f"--config.file={config}",
             f"--storage.tsdb.path={os.path.join(folder, 'data')}",
             f"--web.listen-address={self._address}"],
            stdout=self._log, stderr=self._log)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def value(self, query):
        """The one number that a query finds; None: none."""
        url = f"http://{self._address}/api/v1/query?" + urllib.parse.urlencode(
            {"query": query})
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(url, timeout=10) as answer:
                rows = json.load(answer)["data"]["result"]
                return float(rows[0]["value"][1]) if rows else None
        return None


def _memory():
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = [one for one in file if one.startswith("RssAnon:")]
    return int(line.split()[1]) << 10


def _series(prometheus):
    return prometheus.value('count({job="train",__name__=~"stratalloc_.*"})')


def _watch(args, train, prometheus):
    began, lasts = time.monotonic(), args.minutes * 60
    pause, series, told, memory = threading.Event(), None, 0, []
    while time.monotonic() - began < lasts:
        train.step()
        pause.wait(.5)
        passed = time.monotonic() - began
        memory.append(_memory())
        if series is None and passed > max(lasts / 10, 3 * args.interval):
            series = _series(prometheus)
        if passed > told:
            told += 60
            print(f"{passed:.0f} s, {train.steps} steps, "
                  f"{_memory() >> 20} MiB", file=sys.stderr, flush=True)
    tenth = max(1, len(memory) // 10)
    early = {"memory": min(memory[tenth:2 * tenth] or memory),
             "series": series}
    late = {"memory": min(memory[-tenth:]),
            "series": _series(prometheus)}
    span = f"[{int(lasts) + 60}s]"
    of = '{job="train"}'
    found = {
        "minutes": args.minutes, "steps": train.steps,
        "scrapes": prometheus.value(f"count_over_time(up{of}{span})"),
        "failed": prometheus.value(
            f"count_over_time((up{of} == 0){span[:-1]}:{args.interval}s])"),
        "scrape_seconds": {
            "average": prometheus.value(
                f"avg_over_time(scrape_duration_seconds{of}{span})"),
            "most": prometheus.value(
                f"max_over_time(scrape_duration_seconds{of}{span})")},
        "samples": prometheus.value(f"scrape_samples_scraped{of}"),
        "series_ever": prometheus.value(
            'count(last_over_time({job="train",__name__=~"stratalloc_.*"}'
            f"{span}))"),
        "moved_bytes": prometheus.value(
            f"sum(stratalloc_tier_moved_bytes_total{of})"),
        "second_tenth": early, "last_tenth": late}
    return {**found, "faults": list(_faults(found))}


def _faults(found):
    early, late = found["second_tenth"], found["last_tenth"]
    if not found["scrapes"] or early["series"] is None:
        yield "nothing was scraped"
        return
    if found["failed"]:
        yield f"{found['failed']:.0f} scrapes failed"
    if early["series"] != late["series"] or found["series_ever"] != (
            late["series"]):
        yield (f"{early['series']} series became {late['series']}, "
               f"{found['series_ever']} in all")
    if late["memory"] - early["memory"] > _MOST_GROWTH:
        yield f"memory grew by {late['memory'] - early['memory']} bytes"


if __name__ == "__main__":
    sys.exit(main())
