# SPDX-License-Identifier: Apache-2.0
"""Ends of bundles and callbacks of an out of memory: full disks, forks, threads.

Whatever happens to them, the program gets its own torch.OutOfMemoryError.
"""

import errno
import json
import logging
import os
import subprocess
import sys
import threading

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402

from ooms import (  # noqa: E402,F401
    MIB, bundles, enabled, load, nothing_is_left, only, oom_dir, refused, said,
    use)
import stratalloc  # noqa: E402
from stratalloc.cli import command_line as cli  # noqa: E402
from stratalloc._oom import bundle, hook  # noqa: E402


# ---- what goes wrong ---------------------------------------------------------


def test_no_room_leaves_nothing_and_one_line(oom_dir, monkeypatch, caplog):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle, "_put", full)
    with caplog.at_level(logging.WARNING):
        message = refused()
    assert message.startswith("CUDA out of memory. Tried to allocate 100")
    assert bundles(oom_dir) == []
    (line,) = said(caplog)
    assert "No space left on device" in line


_FULL = """
import ctypes, json, logging, os, resource, sys

folder = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, PRIVATE = 0x20000, 0x10000000, 0x44000


def mounted():
    if libc.unshare(NEWNS) != 0 and libc.unshare(NEWNS | NEWUSER) != 0:
        return False
    return (libc.mount(b"none", b"/", None, PRIVATE, None) == 0
            and libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0,
                           b"size=64k") == 0)


# Who may not mount one has a limit that does the same.
how = ("a full file system" if sys.argv[2] == "mount" and mounted()
       else "a limit of files")
from stratalloc import simulate
simulate.load("64MiB")
import torch, stratalloc
lines = []
logging.getLogger("stratalloc").addHandler(logging.Handler())
logging.getLogger("stratalloc").handlers[-1].emit = (
    lambda record: lines.append(record.getMessage()))
stratalloc.enable(oom_dir=folder, tiering=False)
torch.cuda.init()
if how == "a full file system":
    with open(os.path.join(folder, "mine"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
else:
    resource.setrlimit(resource.RLIMIT_FSIZE,
                       (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    torch.empty(90 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(json.dumps([how, str(error), sorted(os.listdir(folder)), lines]))
"""


@pytest.mark.parametrize("way", ["mount", "limit"])
def test_a_directory_that_has_no_room(tmp_path, way):
    (tmp_path / "full.py").write_text(_FULL)
    os.mkdir(tmp_path / "there")
    done = subprocess.run(
        [sys.executable, "full.py", str(tmp_path / "there"), way],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    how, message, left, lines = json.loads(done.stdout.splitlines()[-1])
    assert message.startswith("CUDA out of memory. Tried to allocate 90.00 MiB")
    assert message.endswith(" No setting helps.")
    assert left == (["mine"] if how == "a full file system" else [])
    (line,) = lines
    assert os.strerror(errno.ENOSPC if left else errno.EFBIG) in line, how


@pytest.mark.parametrize("how", ["removed", "a file", "somebody's link"])
def test_a_directory_that_is_none(oom_dir, monkeypatch, caplog, how):
    there = oom_dir / "there"
    os.mkdir(there)
    use(there)
    os.rmdir(there)
    if how == "a file":
        there.write_text("mine")
    if how == "somebody's link":
        os.mkdir(oom_dir / "elsewhere")
        there.symlink_to(oom_dir / "elsewhere")
        real = os.lstat

        def lstat(path, **how):
            found = real(path, **how)
            return os.stat_result([*found[:4], 4242, *found[5:]])

        monkeypatch.setattr(bundle.os, "lstat", lstat)
    with caplog.at_level(logging.WARNING):
        assert str(there) not in refused()
    (line,) = said(caplog)
    assert str(there) in line
    assert not os.path.isdir(oom_dir / "elsewhere") or not os.listdir(
        oom_dir / "elsewhere")


def test_a_half_written_one_has_no_bundle_s_name(oom_dir, monkeypatch):
    seen = []
    real = bundle._snapshot

    def look(path):
        seen.extend(bundles(oom_dir))
        real(path)

    monkeypatch.setattr(bundle, "_snapshot", look)
    refused()
    assert [name.endswith(".partial") for name in seen] == [True]
    with pytest.raises(cli.UsageError):
        from stratalloc._oom import command

        os.rename(only(oom_dir), only(oom_dir) + ".partial")
        command.find(str(oom_dir))


def test_a_callback_that_fails_is_logged(caplog):
    heard = []
    remove = [stratalloc.on_oom(lambda report: 1 // 0),
              stratalloc.on_oom(heard.append)]
    message = refused()
    assert heard[0].verdict.kind == "capacity"
    assert message.endswith(" No setting helps.")
    assert heard[0].bundle is None
    (line,) = said(caplog)
    assert "a callback of on_oom() failed" in line
    for one in remove:
        one()
    refused()
    assert len(heard) == 1


def test_out_of_memory_inside_of_a_callback_is_told_to_nobody(oom_dir):
    inside = []

    def again(report):
        inside.append(refused())

    remove = stratalloc.on_oom(again)
    refused()
    remove()
    assert len(inside) == 1
    assert "stratalloc wrote" not in inside[0]
    assert len(bundles(oom_dir)) == 1


@pytest.mark.parametrize("what", [None, 3, "print"])
def test_what_cannot_be_called(what):
    with pytest.raises(TypeError, match="cannot be called"):
        stratalloc.on_oom(what)


def test_a_fork_has_a_lock_of_its_own():
    with hook._state.lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if hook._state.lock.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- who is refused ----------------------------------------------------------


def test_threads_that_are_refused_together(oom_dir):
    start, messages = threading.Barrier(4), []

    def ask():
        start.wait()
        messages.append(refused())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(messages) == 4
    assert all(only(oom_dir) in message for message in messages)


def test_a_backward_of_pytorch_s_own_thread(oom_dir):
    x = torch.ones(5 * MIB, device="cuda", requires_grad=True)
    y = x[:16].sum()
    stratalloc.pin(x)
    kept = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(kept):
        fill = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as error:
        y.backward()
    folder = only(oom_dir)
    assert folder in str(error.value)
    assert load(folder, "report.json")["site"] is None
    stratalloc.unpin(x)
    del fill, kept, x, y


def test_while_a_graph_is_captured(oom_dir):
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        refused()
        torch.ones(4, device="cuda").add_(1)
    assert load(only(oom_dir), "report.json")["facts"]["parts"]["capturing"]
    graph.replay()
    torch.cuda.synchronize()
