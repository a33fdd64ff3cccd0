# SPDX-License-Identifier: Apache-2.0
"""Bounds of bundles: how many, how large, and how long the program waits."""

import logging
import os
import random
import subprocess
import sys
import time
import types

from bazel import programs
from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

from ooms import (  # noqa: E402,F401
    ALWAYS, MIB, bundles, enabled, load, nothing_is_left, only, oom_dir,
    refused, said, use)
from stratalloc._oom import bundle, suggestions  # noqa: E402


def test_advised_fraction_is_never_below_what_is_needed():
    chosen = random.Random(7)
    for _ in range(1000):
        card = chosen.randrange(1, 1 << 38)
        wanted = chosen.randint(1, card)
        settings = {"gpu_limit": 0}
        parts = {"allowed": wanted // 2, "total": card, "fraction": .5}
        advised = suggestions._of_limit(
            {"parts": parts, "settings": settings}, wanted)
        fraction = float(advised.text.partition(" to ")[2].partition(",")[0])
        assert wanted <= fraction * card <= max(1.002 * wanted, wanted + 1)


def test_a_search_for_the_largest_batch_writes_one(oom_dir):
    messages = []
    for size in range(95 + 30, 95, -1):
        messages.append(refused(size * MIB))
    folder = only(oom_dir)
    assert len(messages) == 30
    assert all(folder in message for message in messages)
    assert all(message.startswith("CUDA out of memory. Tried to allocate")
               for message in messages)


_PLACES = """
import sys
import torch, stratalloc

MIB = 1 << 20


def ask(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def forward(batch):
    if batch % 6 == 0:
        return ask(batch)
    if batch % 6 == 1:
        return ask(batch)
    if batch % 6 == 2:
        return ask(batch)
    if batch % 6 == 3:
        return ask(batch)
    if batch % 6 == 4:
        return ask(batch)
    return ask(batch)


def caught(call, *arguments):
    try:
        return call(*arguments)
    except torch.OutOfMemoryError as error:
        print(*str(error).split())


def search():
    batch = 90
    while caught(forward, batch) is None:
        batch -= 1


def sites():
    caught(forward, 90)
    caught(forward, 90)
    for _ in range(2):
        caught(forward, 91)


def main():
    torch.cuda.init()
    {"search": search, "sites": sites}[sys.argv[1]]()


if __name__ == "__main__":
    main()
"""


def places(folder, which, **settings):
    (folder / "places.py").write_text(_PLACES)
    os.makedirs(folder / "ooms", exist_ok=True)
    conf = ",".join([f"oom_dir:{folder / 'ooms'}", "telemetry:counters", *(
        f"{name}:{value}" for name, value in settings.items())])
    done = programs.run("-m", "stratalloc", "run", "--simulate", "64MiB",
                        "--conf", conf, "places.py", which, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "Tried to" in line]


def test_a_search_over_a_forward_writes_one(tmp_path):
    """Refused at six lines of it in turn, each with its own verdict."""
    said = places(tmp_path, "search")
    folder = only(tmp_path / "ooms")
    assert len(said) > 20
    for batch, line in zip(range(90, 0, -1), said):
        assert f"Tried to allocate {batch}.00 MiB" in line
        assert ("The tensor is larger than the card" in line) == (batch > 64)
        assert folder in line


def test_other_places_write_their_own_up_to_a_number(tmp_path):
    said = places(tmp_path, "sites")
    assert len(said) == 4 and len(bundles(tmp_path / "ooms")) == 3
    assert "about an earlier one" in said[3]
    said = places(tmp_path, "sites", oom_max_dumps=1)
    assert len(bundles(tmp_path / "ooms")) == 4
    for line in said[1:]:
        assert str(tmp_path) not in line
        assert "The tensor is larger than the card" in line


def test_bundles_have_so_many_bytes_together(oom_dir, caplog):
    os.mkdir(oom_dir / "oom_older")
    (oom_dir / "oom_older" / "report.md").write_bytes(bytes(4096))
    use(oom_dir, oom_max_bytes=4096)
    with caplog.at_level(logging.WARNING):
        message = refused()
    assert str(oom_dir) not in message
    assert bundles(oom_dir) == ["oom_older"]
    (line,) = said(caplog)
    assert "oom_max_bytes" in line


def test_what_is_too_large_is_left_out_and_said(oom_dir, monkeypatch):
    def huge(path):
        with open(path, "wb") as file:
            file.truncate(3 << 30)

    monkeypatch.setattr(bundle, "_snapshot", huge)
    refused()
    folder = only(oom_dir)
    assert "snapshot.pickle" not in os.listdir(folder)
    assert "oom_max_bytes" in load(
        folder, "manifest.json")["left_out"]["snapshot.pickle"]


def test_a_converter_that_never_ends_is_ended(tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    os.mkdir(tmp_path / "here")
    use(tmp_path / "here", oom_max_seconds=1000)
    real, ended = bundle.subprocess.run, []

    def run(*arguments, timeout, **how):
        # All that was before it took some of the time, and it gets the rest.
        assert 0 < timeout < 1000
        try:
            return real(*arguments, timeout=.1, **how)
        except subprocess.TimeoutExpired:
            ended.append(True)
            raise

    monkeypatch.setattr(bundle.subprocess, "run", run)
    refused()
    manifest = load(only(tmp_path / "here"), "manifest.json")
    assert ended == [True]
    assert set(manifest["files"]) == ALWAYS - {"manifest.json"}
    assert "oom_max_seconds" in manifest["left_out"]["trace.pftrace"]


def test_what_comes_after_the_time_is_left_out(oom_dir, monkeypatch):
    now = [0.]
    monkeypatch.setattr(bundle, "time", types.SimpleNamespace(
        monotonic=lambda: now[0], gmtime=time.gmtime, strftime=time.strftime))

    def statistics(device):
        now[0] = 1001.
        return {}

    monkeypatch.setattr(bundle, "_statistics", statistics)
    use(oom_dir, oom_max_seconds=1000)
    refused()
    manifest = load(only(oom_dir), "manifest.json")
    assert "stats.json" in manifest["files"]
    assert "oom_max_seconds" in manifest["left_out"]["snapshot.pickle"]
