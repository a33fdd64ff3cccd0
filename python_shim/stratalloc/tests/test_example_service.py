# SPDX-License-Identifier: Apache-2.0
"""The example of a service: started by STRATALLOC=1 with half of its model's
bytes on the card it answers as a CPU does, and ends without a trace."""

import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import types

import httpx2
import pytest

from bazel import programs
from stratalloc import simulate

simulate.load("1GiB")

_EXAMPLE = pathlib.Path("python_shim/examples/embedding_service").absolute()
sys.path.insert(0, str(_EXAMPLE))

# pylint: disable=wrong-import-position
import batching
import load
import model
import stratalloc
import torch

_PARAMETERS = 90852864  # bytes of all-MiniLM-L6-v2
_CAP = _PARAMETERS // 2


def _environment(folder, **more):
    # Sums of several threads are in another order. Importing transformers makes
    # a directory of torch's compiler.
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder),
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}_compiler", **more}


class _Service:
    """The program, and the lines that it has written until now."""

    def __init__(self, folder):
        self.folder, self.lines = folder, []
        self.process = subprocess.Popen(
            [sys.executable, "service.py", "--port", "0"], cwd=_EXAMPLE,
            stderr=subprocess.PIPE, text=True, env=_environment(
                folder, STRATALLOC="1", STRATALLOC_CONF=f"gpu_limit:{_CAP}"))
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"running on (http://127.0.0.1:(\d+))", line):
                self.url, self.port = found[1], int(found[2])
                break
        else:
            raise AssertionError("".join(self.lines))
        self._reader = threading.Thread(
            target=lambda: self.lines.extend(self.process.stderr))
        self._reader.start()

    def end(self):
        """Its exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self._reader.join()
        return code


@pytest.fixture(scope="module", name="service")
def _service(tmp_path_factory):
    simulate.for_children()
    service = _Service(tmp_path_factory.mktemp("service"))
    yield service
    service.process.kill()
    service.process.wait()


def _ask(service, texts):
    return httpx2.post(service.url + "/embed", json={"texts": texts},
                       timeout=120)


def test_under_load_every_answer_is_the_cpus(service, tmp_path):
    out = tmp_path / "load.json"
    done = programs.run(
        "load.py", service.url, "--clients", "3", "--seconds", "1", "--lists",
        "4", "--json", out, cwd=_EXAMPLE, env=_environment(tmp_path))
    found = json.loads(out.read_text())
    # One second is too short to call a process's memory flat.
    assert found["errors"] == 0, done.stderr
    assert found["requests"] > 0
    assert found["furthest_alone"] == 0
    assert found["furthest_under_load"] < 1e-6
    assert 0 < found["memory"]["device, peak"]["most"] <= _CAP
    assert found["moved"]["host to device"] > 0
    assert re.search(r"errors\s+│\s+0 │", done.stdout), done.stdout
    assert "\x1b[" not in done.stdout


def test_it_says_what_it_is(service):
    assert _ask(service, ["a wolf"]).status_code == 200
    about = httpx2.get(service.url + "/health").json()
    assert about == {"status": "ok", "waiting": 0, "device": "cuda",
                     "parameter_bytes": _PARAMETERS}
    told = httpx2.get(service.url + "/metrics").text
    assert 'stratalloc_memory_limit_bytes{device="0",tier="device"} ' in told
    assert re.search(r"^process_resident_memory_bytes \S+$", told, re.M)
    assert 'embedding_request_seconds_count{status="200"}' in told


def test_a_request_that_is_too_large_is_told_why_and_the_next_is_served(
        service):
    (texts,) = load.requests(1)
    before = _ask(service, texts).json()
    refused = _ask(service, ["one more word " * 140] * 32)
    assert refused.status_code == 503
    assert re.fullmatch(
        r"gpu_limit allows 43.32 MiB of the card's 1 GiB: with .* more it "
        "would have been served, and the card has them. Send fewer or shorter "
        "texts at once.", refused.json()["detail"]), refused.text
    assert _ask(service, texts).json() == before


def test_what_is_no_request_is_told_why(service):
    for body, where, text in (
            ({"texts": []}, ["body", "texts"], "at least 1 item"),
            ({"texts": ["a"] * 33}, ["body", "texts"], "at most 32 items"),
            ({"texts": ["a", ""]}, ["body", "texts", 1], "at least 1 char"),
            ({"texts": ["a" * 2001]}, ["body", "texts", 0], "at most 2000 ch"),
            ({"text": "a"}, ["body", "texts"], "Field required")):
        answer = httpx2.post(service.url + "/embed", json=body)
        (fault,) = answer.json()["detail"]
        assert (answer.status_code, fault["loc"]) == (422, where)
        assert text in fault["msg"]
    large = httpx2.post(service.url + "/embed", content=b" " * ((1 << 20) + 1))
    assert (large.status_code, large.json()["detail"]) == (
        413, "a body has at most 1048576 bytes")
    # Of parts, which have no length together.
    parts = httpx2.post(service.url + "/embed", content=iter([b"{}"]))
    assert parts.status_code == 411


def test_it_ends_when_it_is_told_to(service):
    assert service.end() == 0
    text = "".join(service.lines)
    assert "Application shutdown complete." in text
    # What is said at the end of Python.
    assert "0 launches without a twin, 0 refused calls, 0 violations" in text
    with socket.socket() as port:
        assert port.connect_ex(("127.0.0.1", service.port)) != 0
        port.bind(("127.0.0.1", service.port))
    assert os.listdir(service.folder) == []


def test_the_table_in_pieces_is_the_table():
    torch.manual_seed(0)
    table = torch.randn(20000, 8)
    words = torch.randint(0, 20000, (4, 50))
    words[0, :4] = torch.tensor([0, 8191, 8192, 19999])
    assert torch.equal(model.WordsInPieces(table)(words),
                       torch.nn.functional.embedding(words, table))


def test_without_the_package_weights_are_random():
    rows = model.Embedder("cpu", random=True)(["a wolf", "a long train home"])
    assert [len(row) for row in rows] == [384, 384] and rows[0] != rows[1]
    for row in rows:
        assert sum(one * one for one in row) == pytest.approx(1, abs=1e-5)


class _Held:
    """An `embed` that waits for `go`; texts of more than `room` together, or
    the text "large", are too much."""

    def __init__(self, room=100):
        self.go, self.began = threading.Event(), threading.Event()
        self.calls, self._room = [], room

    def __call__(self, texts):
        self.calls.append(texts)
        self.began.set()
        assert self.go.wait(60)
        if len(texts) > self._room or "large" in texts:
            raise torch.OutOfMemoryError("no room")
        if "odd" in texts:
            raise KeyError("odd")
        return [[len(text)] for text in texts]


def test_what_comes_meanwhile_goes_together():
    held = _Held()
    batcher = batching.Batcher(held, together=4)
    futures = [batcher.submit(["a"])]
    assert held.began.wait(60)
    futures += [batcher.submit(texts) for texts in (
        ["b"], ["c", "cc"], ["d", "dd"], ["e"] * 6, ["f"])]
    held.go.set()
    batcher.close()  # what waits is done before it ends
    assert not batcher.alive()
    assert [future.result(0) for future in futures] == [
        [[1]], [[1]], [[1], [2]], [[1], [2]], [[1]] * 6, [[1]]]
    assert held.calls == [["a"], ["b", "c", "cc"], ["d", "dd"], ["e"] * 6,
                          ["f"]]


def test_closed_batcher_ends_its_callback(monkeypatch):
    callbacks, ended = [], []

    def on_oom(callback):
        callbacks.append(callback)
        return types.SimpleNamespace(close=lambda: ended.append(callback))

    monkeypatch.setattr(stratalloc, "is_enabled", lambda: True)
    monkeypatch.setattr(stratalloc, "on_oom", on_oom)
    batcher = batching.Batcher(_Held())
    assert len(callbacks) == 1 and ended == []
    batcher.close()
    assert ended == callbacks


def test_who_is_refused_is_alone():
    held = _Held(room=2)
    batcher = batching.Batcher(held, waiting=3)
    first = batcher.submit(["odd"])
    assert held.began.wait(60)
    futures = [batcher.submit(texts) for texts in (["b", "bb"], ["large"])]
    gone = batcher.submit(["gone"])
    with pytest.raises(queue.Full):
        batcher.submit(["g"])
    assert gone.cancel()  # its client has hung up
    held.go.set()
    batcher.close()
    assert isinstance(first.exception(0), KeyError)
    assert futures[0].result(0) == [[1], [2]]
    with pytest.raises(batching.RefusedError, match="no room"):
        futures[1].result(0)
    assert held.calls == [["odd"], ["b", "bb", "large"], ["b", "bb"],
                          ["large"]]
