# SPDX-License-Identifier: Apache-2.0
"""trace(): what happened adds up to what the allocator counted, whatever the
program did: layers, threads, evictions, private pools, streams."""

import threading
import zlib

import pytest

from bazel import programs
from stratalloc import simulate

simulate.load("48MiB")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.accounts import on_thread  # noqa: E402
from traced_tensors import MIB, holds, of_kind, tensor  # noqa: E402
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc.telemetry import (  # noqa: E402
    identities, import_torch, model, recording)
from stratalloc.telemetry.analysis import owners  # noqa: E402
from stratalloc.telemetry.checks import snapshot as snapshot_check  # noqa: E402
from stratalloc.telemetry.exports import snapshot, tiers  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402
from stratalloc.telemetry.replay import Replay  # noqa: E402


def cumulative():
    found = torch.cuda.memory_stats()
    return found["allocated_bytes.all.allocated"]


def test_a_block_is_told_with_its_owner_and_size():
    with stratalloc.trace() as trace:
        with stratalloc.scope("Told.part", category="buffer"):
            kept = tensor(1000)
        del kept
    run = trace.run()
    holds(run)
    made, asked, done = of_kind(run, Kind.ALLOC, Kind.FREE_REQUESTED,
                                Kind.FREE_COMPLETED)
    for event in (made, asked, done):
        assert run.scopes[event["scope"]] == "Told.part"
        assert model.CATEGORIES[event["category"]] == "buffer"
        assert (event["bytes"], event["aux"]) == (1000, 1024)
    assert run.pools[made["pool"]].stream == 0
    entered = of_kind(run, Kind.SCOPE_ENTER, Kind.SCOPE_LEAVE)
    assert [run.scopes[event["scope"]] for event in entered] == \
        ["Told.part"] * 2


def test_training_with_evictions_adds_up():
    """Twice the card: moves, stalls, and every byte of them."""
    net = type("Traced", (nn.Sequential,), {})(
        *[nn.Linear(1024, 1024) for _ in range(20)]).cuda()
    with stratalloc.trace() as trace:
        before = cumulative()
        for step in range(2):
            stratalloc.mark(f"step {step}")
            net(torch.randn(64, 1024, device="cuda")).sum().backward()
            net.zero_grad()
        after = cumulative()
    run = trace.run()
    holds(run)
    made = of_kind(run, Kind.ALLOC)
    program = made[(made["flags"] & (model.EVICTED | model.RESTORED)) == 0]
    assert int(program["aux"].sum()) == after - before
    moves = of_kind(run, Kind.MOVE)
    moved = {model.ends(one) for one in moves["category"].tolist()}
    assert moved >= {(0, 1), (1, 0)}
    assert len(of_kind(run, Kind.STALL))
    assert int(of_kind(run, Kind.STALL)["aux"].max()) < run.duration
    marks = [run.scopes[event["scope"]] for event in of_kind(run, Kind.MARK)]
    assert marks == ["step 0", "step 1"]
    assert len(of_kind(run, Kind.TOTALS)) == 2
    entered = of_kind(run, Kind.SCOPE_ENTER)
    nodes = entered[(entered["flags"] & model.BACKWARD) != 0]
    backward = {run.scopes[one] for one in nodes["scope"].tolist()}
    assert "Traced.3" in backward


def test_what_is_away_is_what_the_events_say(tmp_path):
    """Evicted, restored, and freed while it was away; a snapshot has it as a
    device of its own. That the ledger says the same: test_trace_tiers."""
    with stratalloc.trace() as trace:
        layers = [nn.Linear(1024, 1024, bias=False).cuda() for _ in range(24)]
        with torch.no_grad():
            for layer in layers * 2:
                layer(torch.ones(1, 1024, device="cuda"))
        del layers[:12], layer  # the longest unused
        torch.cuda.synchronize()
    run = trace.run()
    holds(run)
    assert len(of_kind(run, Kind.DROPPED))
    host = tiers.Tiers(run, 0).at(len(run.events) - 1)["host"]
    assert host > 0
    path = tmp_path / "snapshot.pickle"
    snapshot.write(run, path)
    assert snapshot_check.check(path) == []
    back = import_torch.read(path)
    assert [one.name for one in back.devices if one.tier] == ["host"]
    assert Replay(back, 1).allocated.last() == host
    assert owners.peak(back).device == 0


def test_threads_streams_and_pools_add_up():
    pool = torch.cuda.MemPool()
    problems = []

    def work(seed):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                kept = []
                for i in range(300):
                    kept.append(tensor(512 + (seed * 7919 + i * 4099) % 60000))
                    if len(kept) > 8:
                        kept.pop(i % 7).record_stream(
                            torch.cuda.default_stream())
                if seed == 1:
                    with torch.cuda.use_mem_pool(pool):
                        kept.append(tensor(3 * MIB))
        except Exception as error:  # pylint: disable=broad-except
            problems.append(error)

    with stratalloc.trace() as trace:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems
    run = trace.run()
    holds(run)
    made = of_kind(run, Kind.ALLOC)
    assert len(made) >= 1200
    assert len(set(made["thread"].tolist())) >= 4
    assert len({run.pools[one].stream for one in made["pool"].tolist()}) >= 4
    assert any(run.pools[one].owner != (0, 0) for one in made["pool"].tolist())


def test_a_mark_says_what_is_there_and_that_is_checked(tmp_path):
    """Among the events of four threads; a number that was turned is found."""
    path = tmp_path / "marked.strata"
    done = threading.Event()
    rounds = threading.Semaphore(0)  # of all threads together

    def work(seed):
        while not done.is_set():
            kept = [tensor(512 + (seed * 7919 + i * 4099) % 3000000)
                    for i in range(4)]
            rounds.release()
            del kept

    with stratalloc.trace(path):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for i in range(50):
            rounds.acquire()  # each mark has something to be among
            kept = tensor(MIB)
            stratalloc.mark(f"mark {i}")
        done.set()
        for thread in threads:
            thread.join()
        del kept
    run = recording.read(str(path))
    holds(run)
    totals = of_kind(run, Kind.TOTALS)
    assert len(totals) == 50
    assert len(set(totals["address"].tolist())) > 1
    assert int(totals["address"].min()) >= MIB

    assert _command("validate", path)[0] == 0
    data = bytearray(path.read_bytes())
    head = data.index(b"HEAD")
    at = head + 16 + -(-int.from_bytes(data[head + 8:head + 16], "little")
                       // 8) * 8
    assert data[at:at + 4] == b"EVNT"
    size = int.from_bytes(data[at + 8:at + 16], "little")
    events = np.frombuffer(data, model.EVENT, size // 48, at + 16)
    where = np.flatnonzero(events["kind"] == Kind.TOTALS)[30]
    events["address"][where] += 512
    del events
    data[at + 4:at + 8] = zlib.crc32(
        data[at + 16:at + 16 + size]).to_bytes(4, "little")
    path.write_bytes(data)
    code, out = _command("validate", path)
    assert code == 1 and "totals: allocated was" in out, out
    assert len(identities.check(recording.read(str(path)))) == 1


def _command(*arguments):
    done = programs.run("-m", "stratalloc", *arguments)
    return done.returncode, done.stdout + done.stderr


def test_a_relabel_is_told():
    with stratalloc.trace() as trace:
        kept = tensor()
        stratalloc.annotate(kept, "Annotated", category="buffer")
    run = trace.run()
    holds(run)
    (event,) = of_kind(run, Kind.RELABEL)
    assert run.scopes[event["scope"]] == "Annotated"
    assert event["address"] == kept.data_ptr()


class Keeps(nn.Module):
    """Allocates 1, 2 and 3 MiB in its frame; the 2 MiB end before the call."""

    def __init__(self, inside=lambda: None):
        super().__init__()
        self.inside = inside

    def forward(self, kept):
        kept.append(tensor())
        dies = tensor(2 * MIB)
        self.inside()
        del dies
        kept.append(tensor(3 * MIB))


def categories(run, moment):
    """{MiB: category} of the blocks of Keeps at a moment."""
    walked = Replay(run, 0)
    which = walked.live(moment)
    return {size // MIB: model.CATEGORIES[category]
            for size, scope, category in zip(
                walked.rows["size"][which].tolist(),
                *walked.owners(which, moment))
            if run.scopes[scope] == "Keeps"}


def test_frame_end_makes_its_blocks_activations():
    kept = []
    with stratalloc.trace() as trace:
        Keeps()(kept)
        tensor()
    run = trace.run()
    holds(run)
    walked = Replay(run, 0)
    allocated = np.flatnonzero(run.events["kind"] == Kind.ALLOC)
    assert categories(run, allocated[1]) == {1: "temporary", 2: "temporary"}
    assert categories(run, allocated[2]) == {1: "temporary", 3: "temporary"}
    assert categories(run, walked.peak) == {1: "activation", 3: "activation"}
    # A recording of this has nothing for the end to correct.
    run.devices[0].end = None
    assert categories(run, walked.peak) == {1: "activation", 3: "activation"}


def test_recording_begun_inside_a_frame_finds_its_end():
    kept, begun = [], stratalloc.trace()
    Keeps(begun.__enter__)(kept)
    tensor()
    begun.__exit__(None, None, None)
    run = begun.run()
    holds(run)
    assert categories(run, -1) == {1: "temporary", 2: "temporary"}
    assert categories(run, len(run.events) - 1) == {
        1: "activation", 3: "activation"}
    assert owners.tree(run, at="end").rows == [
        row for row in stratalloc.holders().rows if row.bytes]


def test_frames_of_a_thread_end_with_it():
    """Its ring is given back at its end, maybe before its last frame ends."""
    kept = []

    def work():
        frame = stratalloc.scope("Keeps", category="activation")
        tensor()  # takes the ring before the first scope
        frame.__enter__()
        kept.append(tensor())

    with stratalloc.trace() as trace:
        on_thread(work)
    run = trace.run()
    holds(run)
    assert categories(run, len(run.events) - 1) == {1: "activation"}


def test_out_of_memory_is_told():
    with stratalloc.trace() as trace:
        with pytest.raises(torch.OutOfMemoryError):
            tensor(1 << 40)
    (event,) = of_kind(trace.run(), Kind.OOM)
    assert event["bytes"] == 1 << 40


def test_out_of_memory_says_who_asked():
    """In forward, and on a thread of autograd's: in a hook between a node and
    the next, which is the scope's of the node that ran."""
    class Asks(nn.Module):
        def forward(self, x):
            return x * 2

    before = stratalloc.telemetry_level("callsites")
    try:
        with stratalloc.trace() as trace:
            with pytest.raises(torch.OutOfMemoryError):
                with stratalloc.scope("Asked.for", category="buffer"):
                    tensor(1 << 40)
            x = torch.ones(8, device="cuda", requires_grad=True)
            x.register_hook(lambda gradient: tensor(1 << 40))
            out = Asks()(x)
            with pytest.raises(torch.OutOfMemoryError):
                out.sum().backward()
    finally:
        stratalloc.telemetry_level(before)
    run = trace.run()
    forward, backward = of_kind(run, Kind.OOM)
    assert run.scopes[forward["scope"]] == "Asked.for"
    assert model.CATEGORIES[forward["category"]] == "buffer"
    assert run.scopes[backward["scope"]] == "Asks"
    for event in (forward, backward):
        site = run.sites[event["site"]]
        assert (site.file, site.function) == (
            tensor.__code__.co_filename, "tensor")


def test_traces_overlap_and_repeat():
    """Each has what happened while it was open, and no more."""
    with stratalloc.trace() as outer:
        first = tensor(1024)
        with stratalloc.trace() as inner:
            second = tensor(2048)
        third = tensor(4096)
    del first, second, third
    sizes = [of_kind(trace.run(), Kind.ALLOC)["bytes"].tolist()
             for trace in (outer, inner)]
    assert sizes == [[1024, 2048, 4096], [2048]]
    again = stratalloc.trace()
    for _ in range(50):
        with again:
            tensor(512)
        assert of_kind(again.run(), Kind.ALLOC)["bytes"].tolist() == [512]
    with again:
        tensor(512)
        with pytest.raises(RuntimeError, match="being recorded already"):
            again.__enter__()
        assert len(again.run().events)  # so far
