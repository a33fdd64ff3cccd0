# SPDX-License-Identifier: Apache-2.0
"""Metrics over HTTP: where they are served, what is refused, and that a program
which is scraped forks, fails and ends as it would. Each program is a process of
its own."""

import contextlib
import os
import re
import select
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import textwrap
import threading
import urllib.error
import urllib.request

import pytest

from bazel import programs
import stratalloc
from stratalloc._metrics import metrics as _metrics, http as _metrics_http
from stratalloc.telemetry.exports import families

_BEGIN = """
import os, sys, threading, urllib.request
from stratalloc import simulate
simulate.load("48MiB")
import torch
import stratalloc
assert stratalloc.enable(host_budget="64MiB", disk_budget=0)

def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()

def train(steps):
    net = torch.nn.Linear(512, 512).cuda()
    for step in range(steps):
        net(torch.ones(8, 512, device="cuda")).sum().backward()
    return net

"""


def _run(text, **environment):
    """stdout of a program that ends well and says nothing on stderr."""
    done = programs.run("-c", _BEGIN + textwrap.dedent(text),
                        env={**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]
    return done.stdout


def _get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def test_promtool_finds_nothing_to_complain_of_in_a_scrape():
    text = _run("""
    kept = train(3)
    with stratalloc.serve_metrics() as server:
        print(get(server.url), end="")
    """, RANK="1")
    tool = shutil.which("promtool") or shutil.which(
        "promtool", path=sysconfig.get_path("scripts"))
    assert tool, "there is no promtool here; run ./dev setup"
    done = subprocess.run([tool, "check", "metrics"], input=text, text=True,
                          capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    samples = [line for line in text.splitlines() if line[:1] != "#"]
    assert len(samples) > 50
    assert all('rank="1"' in line for line in samples)
    assert not re.search(r"0x[0-9a-f]{6}|pid", text)


def test_it_listens_at_this_machine_alone():
    with stratalloc.serve_metrics() as server:
        assert (server.addr, repr(server)) == (
            "127.0.0.1", f"<stratalloc.MetricsServer {server.url}>")
        with open("/proc/net/tcp", encoding="ascii") as file:
            listening = [line.split()[1] for line in file if
                         line.split()[1].endswith(f":{server.port:04X}")]
        assert listening == [f"0100007F:{server.port:04X}"]
        assert "stratalloc_build_info" in _get(server.url)
        # As Prometheus asks for it.
        assert _get(server.url, Accept="application/openmetrics-text; "
                    "version=1.0.0").endswith("# EOF\n")


def test_a_closed_server_gives_its_port_back():
    with stratalloc.serve_metrics() as server:
        port = server.port
    assert repr(server) == "<stratalloc.MetricsServer closed>"
    with pytest.raises(urllib.error.URLError):
        _get(server.url)
    again = stratalloc.serve_metrics(port)
    again.close()
    again.close()


def test_a_port_that_is_taken_is_said():
    with stratalloc.serve_metrics() as server:
        with pytest.raises(RuntimeError, match=f"serves {server.url} already"):
            stratalloc.serve_metrics(server.port)
        _get(server.url)  # as before
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"port {port} of 127.0.0.1.*in "
                           "use.*or 0"):
            stratalloc.serve_metrics(port)
    with pytest.raises(RuntimeError, match="no-such-host.invalid"):
        stratalloc.serve_metrics(addr="no-such-host.invalid")
    for odd in (-1, 1 << 16, "80", 80.0, True, None):
        with pytest.raises(ValueError, match="port="):
            stratalloc.serve_metrics(odd)
    with pytest.raises(ValueError, match="modules="):
        stratalloc.serve_metrics(modules=-1)


def test_what_is_not_installed_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for call in (stratalloc.serve_metrics,
                 lambda: stratalloc.write_metrics(tmp_path / "a.prom"),
                 stratalloc.metrics_collector):
        with pytest.raises(ImportError, match=r"prometheus_client.*pip install "
                           r"\"stratalloc\[telemetry\]"):
            call()
    assert os.listdir(tmp_path) == []


def test_a_program_with_metrics_of_its_own_serves_both():
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("answers", "Answers.", registry=registry).inc()
    registry.register(stratalloc.metrics_collector(modules=3))
    other = prometheus_client.CollectorRegistry()
    other.register(stratalloc.metrics_collector())
    both, ours = (prometheus_client.generate_latest(one).decode()
                  for one in (registry, other))
    assert "answers_total 1.0" in both and both.endswith(ours)
    with stratalloc.serve_metrics() as server:
        assert ours == _get(server.url)
    with pytest.raises(ValueError, match="modules=-1"):
        stratalloc.metrics_collector(modules=-1)


def test_a_scrape_calls_no_cuda():
    """Before CUDA is initialised, which it is not by that, and after."""
    out = _run("""
    calls = simulate.driver().cudasim_calls
    with stratalloc.serve_metrics() as server:
        before = calls(None)
        text = get(server.url)
        assert calls(None) == before and not torch.cuda.is_initialized()
        assert "memory" not in text and "stratalloc_build_info" in text
        kept = train(1)
        before = calls(None)
        assert "stratalloc_memory_reserved_bytes" in get(server.url)
        assert calls(None) == before > 0
    print("fine")
    """)
    assert out == "fine\n"


def test_a_scrape_imports_nothing():
    """A child that is forked during an import waits for it for ever."""
    out = _run("""
    kept = train(1)
    with stratalloc.serve_metrics() as server:
        before = set(sys.modules)
        get(server.url)
        print(sorted(set(sys.modules) - before))
    """)
    assert out == "[]\n"


_FORKS = """
import signal
signal.alarm(100)  # of whoever waits for ever nothing is left
kept = train(1)
server = stratalloc.serve_metrics()
stop = threading.Event()
counted = [0]

def scrape():
    while not stop.is_set():
        get(server.url)
        counted[0] += 1

threads = [threading.Thread(target=scrape, daemon=True) for _ in range(2)]
for one in threads: one.start()
for fork in range(12):
    while counted[0] < 3 * fork:  # forks meet scrapes
        pass
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        listening = [one for one in os.listdir("/proc/self/fd") if
                     os.path.exists(f"/proc/self/fd/{one}") and
                     os.readlink(f"/proc/self/fd/{one}") == LISTENS]
        server.close()  # does nothing, and waits for nobody
        from stratalloc._metrics import metrics as _metrics
        names = [one.name for one in _metrics.families()]
        if (listening, names) != ([], ["build_info"]):
            print(listening, names, file=sys.stderr, flush=True)
            os._exit(9)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, code
stop.set()
for one in threads: one.join()
assert "stratalloc_memory" in get(server.url)
print(counted[0] >= 33)
"""


def test_a_fork_in_the_middle_of_scrapes_neither_serves_nor_waits():
    text = _FORKS.replace("stop = threading", "LISTENS = os.readlink(f'/proc/"
                          "self/fd/{server._server.fileno()}')\nstop = "
                          "threading")
    assert _run(text) == "True\n"


def test_a_port_is_free_though_a_child_lives():
    """A worker that was forked has no copy of the socket."""
    assert _run("""
    server = stratalloc.serve_metrics()
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        os.read(read, 1)  # lives until it is let go
        os._exit(0)
    server.close()
    stratalloc.serve_metrics(server.port).close()
    os.close(write)
    os.wait()
    print("fine")
    """) == "fine\n"


def test_who_hangs_up_is_not_told_on_the_programs_stderr():
    out = _run("""
    import socket, struct
    kept = train(1)
    server = stratalloc.serve_metrics()
    for sent in (b"", b"GET /met", b"GET /metrics HTTP/1.0\\r\\n\\r\\n", b"\\0" * 99):
        with socket.create_connection((server.addr, server.port)) as one:
            one.sendall(sent)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                           struct.pack("ii", 1, 0))  # reset
    print("stratalloc_memory" in get(server.url))
    server.close()
    """)
    assert out == "True\n"


_SERVES = """
import sys
import stratalloc
server = stratalloc.serve_metrics()
print(server.port, flush=True)
sys.stdin.read()
"""


def _connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def test_the_silent_neither_cost_much_nor_keep_a_scrape_waiting():
    with subprocess.Popen([sys.executable, "-c", _SERVES], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as serves:
        port = int(serves.stdout.readline())

        def scraped():
            """How many threads and descriptors there are after a scrape."""
            assert "build_info" in _get(f"http://127.0.0.1:{port}/metrics")
            return [len(os.listdir(f"/proc/{serves.pid}/{what}"))
                    for what in ("task", "fd")]

        before = scraped()
        with contextlib.ExitStack() as stack:
            for i in range(200):
                one = stack.enter_context(_connect(port))
                one.sendall([b"", b"GET /met", b"GET / HTTP/1.1\r\nA: "][i % 3])
            after = scraped()
        # One more may be on its way in or out.
        assert all(now <= was + _metrics_http.MOST + 1
                   for was, now in zip(before, after)), (before, after)
        assert serves.communicate() == ("", "")
    assert serves.returncode == 0


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET / HTTP/1.1\r\nA: b"])
def test_who_sends_no_request_is_given_up(monkeypatch, sent):
    monkeypatch.setattr(_metrics_http, "IDLE", 0.01)
    with stratalloc.serve_metrics() as server, _connect(server.port) as one:
        one.sendall(sent)
        assert one.recv(1) == b""


def test_who_has_asked_is_answered_whoever_comes_after(monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    tell = _metrics.families

    def slowly(modules):
        begun.set()
        assert go_on.wait(60)
        return tell(modules)

    monkeypatch.setattr(_metrics, "families", slowly)
    with stratalloc.serve_metrics() as server, contextlib.ExitStack() as stack:
        scrape = stack.enter_context(_connect(server.port))
        scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert begun.wait(60)
        silent = [stack.enter_context(_connect(server.port))
                  for _ in range(2 * _metrics_http.MOST)]
        for one in silent[:-_metrics_http.MOST + 1]:
            assert one.recv(1) == b""  # its place was needed
        go_on.set()
        with scrape.makefile("rb") as answer:
            assert b"stratalloc_build_info" in answer.read()


def test_who_takes_no_answer_is_given_up_and_told_on_no_stderr(
        monkeypatch, caplog, capfd):
    sent, given_up = threading.Event(), threading.Event()
    get = _metrics_http._Server.get_request
    close = _metrics_http._Server.close_request
    accepted = []  # a server of an earlier test may still close its own

    def getting(server):
        assert sent.wait(60)  # it is not the request that comes too late
        connection, client = get(server)
        accepted.append(connection)
        # The kernel may hand over later what has been sent.
        assert select.select([connection], [], [], 60)[0]
        return connection, client

    def closing(server, request):
        close(server, request)
        if request in accepted:
            given_up.set()

    monkeypatch.setattr(_metrics_http._Server, "get_request", getting)
    monkeypatch.setattr(_metrics_http._Server, "close_request", closing)
    monkeypatch.setattr(_metrics_http, "IDLE", 0.01)
    monkeypatch.setattr(_metrics, "families", lambda modules: [
        families.Family("large", "gauge", "x" * (64 << 20), ())])
    caplog.set_level("DEBUG", "stratalloc")
    with stratalloc.serve_metrics() as server, _connect(server.port) as one:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        sent.set()
        assert given_up.wait(60)
    assert "TimeoutError" in caplog.text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["pass", "sys.exit(0)", "server.close()"])
def test_the_end_of_a_program_that_is_scraped_says_nothing(how):
    _run(f"""
    kept = train(1)
    server = stratalloc.serve_metrics()
    began = threading.Event()

    def scrape():
        try:
            while True:
                get(server.url)
                began.set()
        except OSError:
            pass

    for _ in range(3):
        threading.Thread(target=scrape, daemon=True).start()
    began.wait()
    {how}
    """)


def test_a_lost_device_is_told_as_far_as_it_is_known():
    out = _run("""
    kept = train(1)
    driver = simulate.driver()
    assert driver.cudasim_fail(b"cudaStreamSynchronize", 1, 719, 1) == 0
    try:
        torch.cuda.current_stream().synchronize()
    except RuntimeError:
        pass
    with stratalloc.serve_metrics() as server:
        text = get(server.url)
    print("stratalloc_memory_allocated_bytes{" in text)
    sys.stdout.flush()
    os._exit(0)
    """)
    assert out == "True\n"


def test_a_file_is_whole_and_for_everybody_to_read(tmp_path):
    path = tmp_path / "train.prom"
    seen = []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            if path.exists():
                seen.append(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    before = os.umask(0o077)
    try:
        for _ in range(30):
            stratalloc.write_metrics(path)
    finally:
        os.umask(before)
        stop.set()
        reader.join()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert len(set(seen)) == 1 and seen[0].endswith("\n")
    assert os.listdir(tmp_path) == ["train.prom"]
    with pytest.raises(RuntimeError, match="nowhere/a.prom cannot be written"):
        stratalloc.write_metrics(tmp_path / "nowhere" / "a.prom")
