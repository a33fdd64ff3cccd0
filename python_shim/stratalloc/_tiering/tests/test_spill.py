# SPDX-License-Identifier: Apache-2.0
"""SpillFile: bytes out and back, without CUDA and without enable()."""

import os
import sys
import threading

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from bazel import programs
from stratalloc._native import core as _core
from stratalloc._tiering.spill import SpillFile
from stratalloc.bench import disk
from stratalloc.bench import main

CODECS = ("off", "lz4", "zstd")
PIECE = 8 << 20  # host_spill.cc


def descriptors():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the one that listed them
            pass
    return sorted(found)


def whole(tensor):
    """Its storage, as bytes."""
    return torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())


@pytest.fixture(params=CODECS)
def spill(request, tmp_path):
    with SpillFile(tmp_path, quota="96 MiB", codec=request.param) as file:
        yield file


def test_weights_come_back_bit_for_bit(spill):
    torch.manual_seed(0)
    weights = torch.randn(5 << 20) * .02  # 20 MiB: three pieces
    kept = [weights, weights.view(-1)[100:200],
            torch.randn(12345).bfloat16(), torch.zeros(2 << 20),
            torch.empty(0), torch.tensor([float("nan"), -0.0]),
            torch.arange(3, dtype=torch.int8)]
    tickets = [spill.write(tensor) for tensor in kept]
    assert len(set(tickets)) == len(kept)
    sizes = [tensor.untyped_storage().nbytes() for tensor in kept]
    assert spill.used == spill.written == sum(sizes)
    for ticket, tensor in zip(tickets, kept):
        back = torch.full_like(whole(tensor), 7)
        spill.read(ticket, back)
        assert torch.equal(back, whole(tensor))
        spill.read(ticket, back.untyped_storage())  # as often as you like
    for ticket in tickets:
        spill.free(ticket)
    assert spill.used == spill.stored == 0
    assert spill.written == sum(sizes)


def test_what_is_compressed_takes_less(tmp_path):
    torch.manual_seed(0)
    stored = {}
    for codec in CODECS:
        with SpillFile(tmp_path, quota="64 MiB", codec=codec) as spill:
            spill.write((torch.randn(2 << 20) * .02).bfloat16())
            spill.write(torch.zeros(2 << 20))
            noise = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
            spill.write(noise)
            stored[codec] = spill.stored
            assert spill.used == spill.written == (4 + 8 + 1) << 20
    assert stored["off"] == (13 << 20) + 3 * 4096
    assert stored["lz4"] < .4 * stored["off"]
    assert stored["zstd"] < stored["lz4"]


@hypothesis.settings(max_examples=20, deadline=None, database=None)
@hypothesis.given(codec=st.sampled_from(CODECS), steps=st.lists(st.tuples(
    st.booleans(), st.integers(0, 3 * PIECE), st.integers(0, 4096),
    st.integers(0, 255)), max_size=6))
def test_any_bytes_at_any_address(codec, steps):
    held = {}
    with SpillFile(quota=4 * PIECE, codec=codec) as spill:
        for frees, size, offset, seed in steps:
            if frees and held:
                spill.free(held.popitem()[0])
                continue
            noise = torch.randint(0, seed + 1, (size + offset,),
                                  dtype=torch.int16).to(torch.uint8)
            tensor = noise.numpy()[offset:]  # a storage that begins there
            tensor = torch.from_numpy(tensor)
            before = spill.stored
            try:
                held[spill.write(tensor)] = tensor
            except RuntimeError as error:
                assert "32.00 MiB" in str(error)
                assert spill.stored == before
        assert spill.used == sum(tensor.numel() for tensor in held.values())
        for ticket, tensor in held.items():
            back = torch.zeros(tensor.numel() + 1, dtype=torch.uint8)
            back = torch.from_numpy(back.numpy()[1:])
            spill.read(ticket, back)
            assert torch.equal(back, tensor)


def test_mistakes_are_named_and_lose_nothing(tmp_path):
    missing = tmp_path / "missing"
    for arguments, said in (
            ({"directory": missing, "quota": 1 << 20}, f"{missing}: No such"),
            ({"quota": 1}, "quota of 1 bytes holds nothing"),
            ({"quota": "much"}, "quota of 'much'"),
            ({"quota": -1}, "quota of -1"),
            ({"quota": 1 << 20, "codec": "zip"}, 'no codec "zip"')):
        with pytest.raises((ValueError, RuntimeError)) as refused:
            SpillFile(**arguments)
        assert said in str(refused.value)
    spill = SpillFile(tmp_path, quota="2 MiB")
    kept = torch.arange(1000)
    ticket = spill.write(kept)
    for mistake, said in (
            (lambda: spill.write(torch.empty(8, device="meta")), "on meta"),
            (lambda: spill.write("text"), "no storage"),
            (lambda: spill.read(ticket, torch.empty(7)), "8000 bytes, and 28"),
            (lambda: spill.read(ticket + 1, kept), f"ticket {ticket + 1}"),
            (lambda: spill.read(None, kept), "None is no ticket"),
            (lambda: spill.free(-1), "-1 is no ticket"),
            (lambda: spill.free(ticket + 1), f"ticket {ticket + 1}")):
        with pytest.raises(ValueError) as refused:
            mistake()
        assert said in str(refused.value)
    with pytest.raises(RuntimeError) as refused:
        spill.write(torch.zeros(1 << 20))
    for word in (str(tmp_path), "2.00 MiB", "4.00 MiB", "Raise quota"):
        assert word in str(refused.value)
    back = torch.empty_like(kept)
    spill.read(ticket, back)
    assert torch.equal(back, kept) and spill.used == 8000
    spill.free(ticket)
    with pytest.raises(ValueError):
        spill.free(ticket)
    spill.close()
    spill.close()
    for late in (lambda: spill.write(kept), lambda: spill.free(ticket),
                 lambda: spill.read(ticket, back)):
        with pytest.raises(RuntimeError, match="closed"):
            late()
    assert (spill.used, spill.stored, spill.written) == (0, 0, 8000)


def test_threads_share_a_file(spill):
    failed = []

    def work(number):
        generator = torch.Generator().manual_seed(number)
        for step in range(12):
            tensor = torch.randint(0, 4 + step, (100_000 + step,),
                                   generator=generator)
            ticket = spill.write(tensor)
            back = torch.zeros_like(tensor)
            spill.read(ticket, back)
            spill.free(ticket)
            if not torch.equal(back, tensor):
                failed.append((number, step))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and spill.used == spill.stored == 0


def test_close_leaves_no_descriptor(tmp_path):
    SpillFile(tmp_path, quota="1 MiB").close()  # loads the core
    before = descriptors()
    spill = SpillFile(tmp_path, quota="32 MiB")
    spill.write(torch.zeros(10))
    assert descriptors() != before
    assert os.listdir(tmp_path) == []
    spill.close()
    assert descriptors() == before
    spill = SpillFile(tmp_path, quota="32 MiB")
    del spill
    assert descriptors() == before


FORKED = """
import os, sys, torch
from stratalloc._tiering.spill import SpillFile

spill = SpillFile(sys.argv[1], quota="1 MiB")
kept = torch.arange(1000)
ticket = spill.write(kept)
child = os.fork()
if child == 0:
    said = []
    for call in (lambda: spill.write(kept), lambda: spill.free(ticket),
                 lambda: spill.read(ticket, kept)):
        try:
            call()
        except RuntimeError as error:
            said.append("parent process" in str(error))
    spill.close()
    left = [fd for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")
            and sys.argv[1] in os.readlink(f"/proc/self/fd/{fd}")]
    del spill
    os._exit(0 if said == [True] * 3 and not left else 1)
assert os.waitpid(child, 0)[1] == 0
back = torch.empty_like(kept)
spill.read(ticket, back)
assert torch.equal(back, kept)
assert not torch.cuda.is_initialized()
"""


def test_a_child_is_refused_and_the_parent_goes_on(tmp_path):
    programs.run("-c", FORKED, tmp_path).check_returncode()


EVICTED = """
from stratalloc import simulate

simulate.load("64MiB")
import stratalloc, torch
from stratalloc._native import core as _core

stratalloc.enable(host_budget=0, disk_budget="128MiB", disk_codec="zstd")
weights = [torch.zeros(1 << 20, device="cuda") + i for i in range(8)]
stratalloc.evict()
tiers = stratalloc.report()["tiers"]
assert tiers["disk_raw"] == tiers["bytes_to_disk"] == 32 << 20, tiers
assert tiers["disk_used"] > tiers["disk_stored"] > 0, tiers
assert tiers["disk_stored"] < 1 << 20, tiers
_core.set_disk_codec("off")
for i, weight in enumerate(weights):
    assert (weight.cpu() == i).all()
    weight += 1
stratalloc.evict()
after = stratalloc.report()["tiers"]
assert after["disk_raw"] == 64 << 20, after
assert after["disk_stored"] == tiers["disk_stored"] + (32 << 20), after
for i, weight in enumerate(weights):
    assert (weight.cpu() == i + 1).all()
try:
    _core.set_disk_codec("zip")
except ValueError as error:
    assert "off, lz4 or zstd" in str(error)
else:
    raise AssertionError("there is no such codec")
"""


def test_evicted_memory_is_compressed_as_it_is_set():
    with pytest.raises(RuntimeError, match="nothing can be evicted"):
        _core.set_disk_codec("lz4")  # CUDA is not initialised here
    programs.run("-c", EVICTED).check_returncode()


def test_the_bench_has_a_line_for_each_codec(monkeypatch):
    class Worker:
        def ask(self, what, **values):
            assert what == "disk"
            return disk.measure(torch, **values)

    monkeypatch.setattr(disk, "KINDS", ("zeros",))
    rows = list(disk.lines(Worker(), main.entry, 1))
    assert [row["name"] for row in rows] == ["zeros, lz4", "zeros, zstd"]
    for row in rows:
        assert row["smaller"] > 100
        assert row["ratio"] > 0 and row["read"]["ratio"] > 0
        assert len(list(disk.cells(row))) == len(disk.COLUMNS)


def test_damage_is_told(tmp_path):
    """Bytes of the file are overwritten, as by a disk that rots."""
    for codec in CODECS:
        spill = SpillFile(tmp_path, quota="32 MiB", codec=codec)
        torch.manual_seed(1)
        kept = torch.randn(1 << 18).bfloat16()
        ticket = spill.write(kept)
        damaged = 0
        for fd in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if str(tmp_path) in link:
                with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as file:
                    file.seek(4096 + 20_000)
                    file.write(b"rotten")
                damaged += 1
        assert damaged == 1
        with pytest.raises(RuntimeError, match="not what was written") as told:
            spill.read(ticket, torch.empty_like(kept))
        assert str(tmp_path) in str(told.value)
        spill.close()
    assert not _core.initialized()
