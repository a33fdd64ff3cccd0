# SPDX-License-Identifier: Apache-2.0
"""Programs that are killed while they allocate, move and write events: of each
what is recovered adds up, and has everything that was done before.

STRATALLOC_KILLS says how many (//tests/system/long:kills: 200).
"""

import ctypes
import itertools
import mmap
import os
import random
import signal
import threading
import traceback

from stratalloc import simulate

simulate.load("16MiB")

import torch  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc._native import core as _core  # noqa: E402
from stratalloc.telemetry import identities, recording  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402

_KILLS = int(os.environ.get("STRATALLOC_KILLS", "4"))
_THREADS = 2


def _size(thread, i):
    return 512 + (i * 4099 + thread * 7919) % 60000


def _allocates(thread, done):
    """Block i, then a note outside of the process that it is there."""
    kept = []
    for i in itertools.count():
        kept.append(torch.empty(_size(thread, i), dtype=torch.uint8,
                                device="cuda"))
        done[thread] = i + 1
        if len(kept) > 8:
            del kept[i % 8]


def _moves(done):
    """A model larger than the card, a mark for each step."""
    net = torch.nn.Sequential(
        *[torch.nn.Linear(512, 512) for _ in range(20)]).cuda()
    with torch.no_grad():
        for i in itertools.count():
            net(torch.randn(8, 512, device="cuda"))
            stratalloc.mark(f"step {i}")
            done[0] = i + 1


def _child(path, done, moves):
    """What runs until it is killed; threads in the order in which they begin."""
    assert stratalloc.enable(host_budget="256MiB", disk_budget=0)
    torch.cuda.init()
    _core.begin_recording(path)
    if moves:
        _moves(done)
    for thread in range(1, _THREADS):
        threading.Thread(target=_allocates, args=(thread, done)).start()
    _allocates(0, done)


def _killed(path, moves, moment):
    """How much a child had done for certain when it was killed."""
    memory = mmap.mmap(-1, 4096)
    done = (ctypes.c_uint64 * _THREADS).from_buffer(memory)
    child = os.fork()
    if child == 0:
        try:
            _child(path, done, moves)
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        os._exit(1)
    while done[0] < moment:
        os.sched_yield()
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended by itself"
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return list(done)


def _recovered(tmp_path):
    _core.recover_recording(tmp_path / "running", tmp_path / "made", False)
    run = recording.read(str(tmp_path / "made"))
    assert identities.check(run) == []
    assert run.torn and run.dropped == 0
    for name in ("running", "made"):
        (tmp_path / name).unlink()
    return run


def test_whenever_it_is_killed_nothing_is_lost(tmp_path):
    chance = random.Random(19)
    for kill in range(_KILLS):
        moves = kill % 4 == 3
        done = _killed(str(tmp_path / "running"), moves,
                       chance.randint(1, 12 if moves else 800))
        run = _recovered(tmp_path)
        if moves:
            _has_steps(run, done[0])
        else:
            _has_blocks(run, done)


def _has_steps(run, done):
    marks = run.events["scope"][run.events["kind"] == Kind.MARK]
    told = [run.scopes[one] for one in marks.tolist()]
    assert told == [f"step {i}" for i in range(len(told))]
    assert done <= len(told) <= done + 1
    assert (run.events["kind"] == Kind.MOVE).any()


def _has_blocks(run, done):
    """Of each thread its blocks in its order, and at most one more."""
    made = run.events[run.events["kind"] == Kind.ALLOC]
    found = []
    for thread in sorted(set(made["thread"].tolist())):
        sizes = made["bytes"][made["thread"] == thread].tolist()
        (number,) = (one for one in range(_THREADS)
                     if sizes[0] == _size(one, 0))
        assert sizes == [_size(number, i) for i in range(len(sizes))]
        assert done[number] <= len(sizes) <= done[number] + 1
        found.append(number)
    assert {one for one in range(_THREADS) if done[one]} <= set(found)
