# SPDX-License-Identifier: Apache-2.0
"""Bundles and callbacks of an out of memory: what they are, and their ends.

Whatever happens to them, the program gets its own torch.OutOfMemoryError.
"""

import ctypes
import errno
import json
import logging
import os
import pickle
import stat
import subprocess
import sys
import threading
import time
import types

import pytest

from bazel import programs
from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402
from torch.cuda import _memory_viz  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc.cli import command_line as cli  # noqa: E402
from stratalloc._oom import bundle, hook  # noqa: E402

MIB = 1 << 20
# What a bundle has at the level `events`, whatever packages there are.
_ALWAYS = {"report.md", "report.json", "settings.json", "env.json",
           "run.strata", "stats.json", "snapshot.pickle", "manifest.json"}


@pytest.fixture(scope="module", autouse=True)
def _enabled():
    assert stratalloc.enable(host_budget="1GiB", disk_budget=0,
                             telemetry="events")
    torch.cuda.init()


@pytest.fixture(autouse=True)
def _nothing_is_left():
    hook._state.sites.clear()
    hook._state.dumps = 0
    yield
    hook.use(stratalloc.config())
    assert not hook._state.callbacks and not hook._state.attached


@pytest.fixture
def oom_dir(tmp_path, monkeypatch):
    # Of what a child makes there is a test of its own.
    monkeypatch.setattr(bundle, "_CONVERTED", ())
    use(tmp_path)
    return tmp_path


def use(directory, **bounds):
    hook.use(stratalloc.config().replace(oom_dir=str(directory), **bounds))


def refused(size=100 * MIB):
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    return str(error.value)


def bundles(directory):
    return sorted(name for name in os.listdir(directory))


def only(directory):
    (name,) = bundles(directory)
    return os.path.join(directory, name)


def load(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def said(caplog):
    return [record.getMessage() for record in caplog.records
            if record.name == "stratalloc"]


# ---- what a bundle is --------------------------------------------------------


def test_a_bundle_is_whole_and_its_owner_s_alone(oom_dir):
    with stratalloc.scope("<b>|x"):
        message = refused()
    folder = only(oom_dir)
    assert message.endswith(f" stratalloc wrote {folder}.")
    assert f"_{os.getpid()}_0_0" in folder
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    names = set(os.listdir(folder))
    assert names == _ALWAYS
    assert {stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)
            for name in names} == {0o600}
    manifest = load(folder, "manifest.json")
    assert manifest["files"] == {
        name: os.path.getsize(os.path.join(folder, name))
        for name in names - {"manifest.json"}}
    assert manifest["verdict"] == "capacity"
    assert manifest["torch"] == torch.__version__ and manifest["driver"]
    assert load(folder, "settings.json")["host_budget"] == 1 << 30
    with open(os.path.join(folder, "report.md"), encoding="utf-8") as file:
        text = file.read()
    assert r"\<b\>\|x" in text and "<b>" not in text
    assert "test_oom_endings.py" in text  # the line that asked


def test_others_read_what_is_in_it(oom_dir, capsys):
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.model import Kind

    held = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    refused()
    folder = only(oom_dir)
    with open(os.path.join(folder, "snapshot.pickle"), "rb") as file:
        snapshot = pickle.load(file)
    assert "MiB" in _memory_viz.segsum(snapshot)
    run = recording.read(os.path.join(folder, "run.strata"))
    assert int((run.events["kind"] == Kind.OOM).sum()) >= 1
    assert cli.main(["oom", str(oom_dir)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Out of memory") and folder in shown
    assert cli.main(["oom", folder, "--json",
                     os.path.join(oom_dir, "out.json")]) == 0
    values = load(oom_dir, "out.json")
    assert values["verdict"]["kind"] == "capacity"
    assert values["manifest"]["files"]
    del held


def test_variables_are_told_by_name_alone(oom_dir, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    monkeypatch.setenv("CUDA_MY_SECRET", "a secret")
    refused()
    folder = only(oom_dir)
    assert load(folder, "env.json")["CUDA_LAUNCH_BLOCKING"] == "1"
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            assert b"a secret" not in file.read(), name


def test_what_the_recording_becomes(tmp_path):
    use(tmp_path)
    refused()
    folder = only(tmp_path)
    manifest = load(folder, "manifest.json")
    assert set(manifest["files"]) >= {
        "peak.speedscope.json", "trace.pftrace", "report.html"}, manifest
    assert not manifest["left_out"]
    assert load(folder, "peak.speedscope.json")["profiles"]
    assert not [name for name in os.listdir(folder) if "half" in name]


def test_what_changed_since_the_newest_mark(oom_dir):
    stratalloc.mark("older")
    stratalloc.mark("before it grew")
    with stratalloc.scope("grown"):
        kept = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    refused()
    with open(os.path.join(only(oom_dir), "report.md"),
              encoding="utf-8") as file:
        text = file.read().partition("## 7.")[2].partition("## 8.")[0]
    assert "Since before it grew" in text
    assert "| grown | unknown | +2 MiB |" in text
    del kept


def test_what_lacks_a_package_says_so(oom_dir):
    refused()
    hidden = "import sys; sys.modules.update(numpy=None); " \
             "from stratalloc._oom import exports; exports.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", hidden, only(oom_dir), "trace.pftrace"],
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "numpy" in json.loads(done.stdout)["trace.pftrace"]
    assert set(os.listdir(only(oom_dir))) == _ALWAYS


def test_below_events_there_is_no_recording(oom_dir):
    before = stratalloc.telemetry_level("counters")
    refused()
    stratalloc.telemetry_level(before)
    folder = only(oom_dir)
    assert set(os.listdir(folder)) == _ALWAYS - {"run.strata"}
    assert "below `events`" in load(
        folder, "manifest.json")["left_out"]["run.strata"]


def test_an_operator_that_is_refused_has_a_bundle_and_an_event(oom_dir):
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.model import Kind

    class Layer(torch.nn.Module):
        def forward(self):
            return torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")

    with stratalloc.trace() as trace:
        parts = [torch.nn.Parameter(torch.ones(5 * MIB, device="cuda"))
                 for _ in range(2)]
        stratalloc.evict()
        kept = Layer()()
        before = int((trace.run().events["kind"] == Kind.OOM).sum())
        with pytest.raises(torch.OutOfMemoryError) as error:
            parts[0].data.copy_(parts[1].data)
        assert int((trace.run().events["kind"] == Kind.OOM).sum()) == before + 1
    folder = only(oom_dir)
    assert str(error.value).endswith(f" stratalloc wrote {folder}.")
    assert load(folder, "report.json")["operator"] == "aten::copy_"
    assert recording.read(os.path.join(folder, "run.strata")).events["kind"][
        -1] == Kind.OOM
    del kept, parts


def test_a_pin_that_is_refused(oom_dir):
    first, second = (torch.nn.Parameter(torch.ones(10 * MIB, device="cuda"))
                     for _ in range(2))
    stratalloc.pin(first)
    with pytest.raises(torch.OutOfMemoryError) as error:
        stratalloc.pin(second)
    folder = only(oom_dir)
    assert str(error.value).endswith(f" stratalloc wrote {folder}.")
    assert load(folder, "report.json")["operator"] == "pin()"
    stratalloc.unpin(first)


@pytest.mark.parametrize("letter, times", [("\u00e9", 900), ("\u65e5", 250),
                                           ("\U0001f525", 5000)])
def test_names_are_cut_between_characters(oom_dir, letter, times):
    name = letter * times
    limit = stratalloc.limit("4 MiB", scope=name)
    with stratalloc.scope(name):
        message = refused(8 * MIB)
    limit.remove()
    folder = only(oom_dir)
    assert message.endswith(f" stratalloc wrote {folder}.")
    sentence = load(folder, "report.json")["verdict"]["sentence"]
    assert letter * 5 + "…" + letter * 5 in sentence
    assert letter * 5 + "..." + letter * 5 in message
    assert len(sentence) < 400


def test_a_path_that_is_too_long_is_left_out():
    whole = " wrote /日."
    data = whole.encode()
    for room in range(30):
        assert hook._fitting(whole, room) == (
            data if room >= len(data) else b"")


@pytest.mark.parametrize("said", [b" caf\xc3", b"\xff\xfe", b"\xed\xa0\x80",
                                  b"a\0b", b"\xe6\x97\xa5" * 9999])
def test_a_listener_s_bytes_that_are_no_text(said):
    from stratalloc._native import core as _core

    @_core.REFUSAL_LISTENER
    def listener(told, line, room):
        data = said[:room]
        ctypes.memmove(line, data, len(data))
        return len(data)

    _core.hear_refusals(listener)
    try:
        message = refused()
    finally:
        _core.hear_refusals(None)
    assert message.startswith("CUDA out of memory. ")
    assert "?" in message or "\u65e5" in message


_SECRET = """
import secret_module
import torch, stratalloc
stratalloc.on_oom(lambda report: print(report.verdict.sentence))
net = secret_module.SecretNet().cuda()
with stratalloc.scope("SecretScope/deep"):
    held = [torch.empty(4 << 20, dtype=torch.uint8, device="cuda")]
    stratalloc.mark("secret mark")
    held.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))
    try:
        torch.empty(90 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(error)
stratalloc.limit("9 MiB", scope="SecretScope")
with stratalloc.scope("SecretScope/deep"):
    try:
        torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(error)
"""


def test_what_is_recorded_without_names_has_a_bundle_without(tmp_path):
    (tmp_path / "secret_module.py").write_text(
        "import torch\nclass SecretNet(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.secret_weight = torch.nn.Parameter(torch.ones(9999))\n")
    (tmp_path / "secret.py").write_text(_SECRET)
    os.mkdir(tmp_path / "ooms")
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "64MiB", "--record",
        "r.strata", "--redact", "--conf", f"oom_dir:{tmp_path / 'ooms'}",
        "secret.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stratalloc wrote ") == 2, done.stdout
    assert "SecretScope is limited to 9 MiB" in done.stdout
    for name in bundles(tmp_path / "ooms"):
        folder = os.path.join(tmp_path, "ooms", name)
        manifest = load(folder, "manifest.json")
        assert manifest["redacted"] and "command" not in manifest
        assert set(manifest["left_out"]) >= {
            "env.json", "stats.json", "snapshot.pickle"}
        assert set(manifest["files"]) >= {"report.md", "report.json",
                                          "run.strata", "trace.pftrace"}
        for file in os.listdir(folder):
            with open(os.path.join(folder, file), "rb") as opened:
                text = opened.read().lower()
            for word in (b"secret", os.fsencode(tmp_path).lower()):
                assert word not in text, (file, word)
        report = load(folder, "report.json")
        assert report["owner"].count("#") == 2, "a path of two parts"
        assert cli.main(["oom", folder]) == 0
    kinds = {load(os.path.join(tmp_path, "ooms", name), "report.json")[
        "verdict"]["kind"] for name in bundles(tmp_path / "ooms")}
    assert kinds == {"capacity", "limit"}


# ---- how many ----------------------------------------------------------------


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
    assert set(manifest["files"]) == _ALWAYS - {"manifest.json"}
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


# ---- the command -------------------------------------------------------------


def test_what_is_no_bundle(tmp_path, capsys):
    assert cli.main(["oom", str(tmp_path / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err
    assert cli.main(["oom", str(tmp_path)]) == 2
    assert "no bundle" in capsys.readouterr().err
    for manifest, report in (("{}", "{}"), ("{\"files\": {}}", "[]"),
                             ("{\"files\": {}}", "{\"schema\": 99}"),
                             ("[" * 9999, "{}"), ("{\"files\": {}}", None)):
        folder = tmp_path / "oom_1"
        os.makedirs(folder, exist_ok=True)
        (folder / "manifest.json").write_text(manifest)
        (folder / "report.json").unlink(missing_ok=True)
        if report is not None:
            (folder / "report.json").write_text(report)
        assert cli.main(["oom", str(folder)]) == 1
        assert str(folder) in capsys.readouterr().err


def changed(values, path, value):
    """A copy of JSON values with this at the end of a path of keys."""
    copy = json.loads(json.dumps(values))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


def paths(values, before=()):
    """Of everything inside of it."""
    inside = (values.items() if isinstance(values, dict) else
              enumerate(values[:1]) if isinstance(values, list) else ())
    for key, value in inside:
        yield (*before, key)
        yield from paths(value, (*before, key))


@pytest.fixture(name="made")
def _made(oom_dir):
    """(folder, the report's JSON, the manifest's) of one with something in each
    section."""
    pieces = [torch.empty(3 * MIB // 2, dtype=torch.uint8, device="cuda")
              for _ in range(8)]
    del pieces[::2]
    stratalloc.mark("before")
    with stratalloc.scope("after"):
        pieces.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
    refused()
    folder = only(oom_dir)
    return folder, load(folder, "report.json"), load(folder, "manifest.json")


def told_of(folder, report, manifest, capfd):
    """(exit code, what was printed) where the bundle has these."""
    for name, values in (("report", report), ("manifest", manifest)):
        with open(os.path.join(folder, f"{name}.json"), "w",
                  encoding="utf-8") as file:
            json.dump(values, file)
    code = cli.main(["oom", folder])
    return code, "".join(capfd.readouterr())


def test_no_escape_of_a_foreign_bundle_reaches_a_terminal(made, capfd):
    folder, report, manifest = made
    evil = "\x1b]0;evil\x07\x1b[2J\u202e"
    for path in paths(report):
        if path == ("schema",):
            continue
        code, text = told_of(folder, changed(report, path, evil), manifest,
                             capfd)
        assert code in (0, 1)
        assert "\x1b" not in text and "\u202e" not in text, path
    for one in ({**manifest, "files": {evil: 3}},
                {**manifest, "left_out": {evil: evil}}):
        code, text = told_of(folder, report, one, capfd)
        assert code == 0 and "evil" in text
        assert "\x1b" not in text and "\u202e" not in text
    stays = changed(report, ("facts", "stays"), {evil: 3})
    code, text = told_of(folder, stays, manifest, capfd)
    assert code == 0 and "\x1b" not in text


@pytest.mark.parametrize("value", [
    None, -1, 0, 1.5, float("inf"), float("nan"), "x", [], {}, [[]], [1], True,
    10 ** 400])
def test_anything_in_place_of_anything_is_no_traceback(made, capfd, value):
    folder, report, manifest = made
    assert report["facts"]["holes"] and report["facts"]["changed"]["rows"]
    for path in paths(report):
        code, text = told_of(folder, changed(report, path, value), manifest,
                             capfd)
        assert code in (0, 1), path
        assert code == 0 or "damaged" in text or "no JSON" in text, text
    for name in manifest:
        assert told_of(folder, report, {**manifest, name: value}, capfd)[
            0] in (0, 1)


def test_a_number_that_is_none_and_a_hole_of_nothing_are_damage(made, capfd):
    folder, report, manifest = made
    hole = changed(report, ("facts", "holes", 0, "bytes"), 0)
    code, text = told_of(folder, hole, manifest, capfd)
    assert code == 1 and "ZeroDivisionError" in text
    for text in ("Infinity", "1e999", "NaN"):
        with open(os.path.join(folder, "report.json"), "w",
                  encoding="utf-8") as file:
            file.write(json.dumps(report).replace(
                '"schema": 1', f'"schema": 1, "more": {text}'))
        assert cli.main(["oom", folder]) == 1
        assert "is no number of a report" in capfd.readouterr().err


def test_a_pipe_in_a_bundle_is_not_waited_for(made, capfd):
    folder, _, _ = made
    os.unlink(os.path.join(folder, "report.json"))
    os.mkfifo(os.path.join(folder, "report.json"))
    assert cli.main(["oom", folder]) == 1
    assert "it is a pipe" in capfd.readouterr().err


def test_a_bundle_needs_no_packages_to_be_read(oom_dir):
    refused()
    hidden = "import sys; sys.modules.update(numpy=None, torch=None, " \
             "typer=None, rich=None); from stratalloc import cli; " \
             "raise SystemExit(cli.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "oom", str(oom_dir)],
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Verdict: over the device's capacity" in done.stdout


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))


@pytest.mark.parametrize("words", [(), ("--json", "-")])
def test_oom_without_a_reader_ends_quietly_with_141(made, words):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "oom", made[0], *words],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
