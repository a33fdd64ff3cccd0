# SPDX-License-Identifier: Apache-2.0
"""The socket of a live process: who may read it, and what no client can do.

No device: a sample is what the test says. Who is somebody else, or forks, is a
process of its own.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading

import pytest

from python_shim.stratalloc._live.tests import live_samples
from stratalloc._live import client, protocol, server, socket_path

NOBODY = 65534
_SAMPLE = {**live_samples.sample(), "pid": os.getpid()}


def _may_become(user):
    """Root may, of a user that there is: a sandbox has no other."""
    with open("/proc/self/uid_map", encoding="utf-8") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return os.geteuid() == 0 and any(
        first <= user < first + count for first, _, count in ranges)


_needs_another_user = pytest.mark.skipif(
    not _may_become(NOBODY), reason="only root becomes another user, and in a "
    "sandbox there is none")


@pytest.fixture(name="runtime")
def _runtime(monkeypatch):
    # Short: a socket's path has 107 bytes.
    folder = tempfile.mkdtemp(prefix="live-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(name="served")
def _served(runtime):
    made = server.Server(lambda: _SAMPLE)
    yield made
    made.close()


def _connected(served):
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(60)
    raw.connect(served.path)
    return raw


def _all_that_comes(raw):
    found = b""
    while True:
        try:
            some = raw.recv(1 << 16)
        except ConnectionResetError:
            return found  # it did not read all that we sent
        if not some:
            return found
        found += some


def _child(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=os.environ, capture_output=True, text=True, timeout=120,
        check=False)


def test_a_sample_is_one_line_and_the_socket_its_owners_alone(served, runtime):
    assert served.path == f"{runtime}/stratalloc/{os.getpid()}.sock"
    assert stat.S_IMODE(os.stat(served.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(served.path)).st_mode) == 0o700
    with _connected(served) as raw:
        raw.sendall(protocol.REQUEST)
        answer = _all_that_comes(raw)
    assert answer.count(b"\n") == 1 and answer.endswith(b"\n")
    assert json.loads(answer) == _SAMPLE
    assert client.ask(os.getpid(), served.path) == json.loads(answer)
    assert [one[:2] for one in client.all_of_them()[0]] == [
        (os.getpid(), served.path)]


def test_a_line_that_comes_in_pieces_is_a_request(served):
    with _connected(served) as raw:
        for one in protocol.REQUEST:
            raw.sendall(bytes([one]))
        assert b'"devices"' in _all_that_comes(raw)


@pytest.mark.parametrize("rubbish", [
    b"GET / HTTP/1.1\r\n", b"sample 2\n", b"\0" * 4096, b"sample 1\nsample 1\n",
    b"\n", b"s" * 100_000])
def test_rubbish_is_told_so_and_serves_nothing(served, rubbish):
    with _connected(served) as raw:
        try:
            raw.sendall(rubbish)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough
        answer = _all_that_comes(raw)
    assert list(json.loads(answer)) == ["version", "error"]
    assert client.ask(os.getpid(), served.path)["pid"] == os.getpid()


def test_who_says_or_reads_nothing_is_let_go(served, monkeypatch):
    """More of them than are served at a time, and others still get answers."""
    monkeypatch.setattr(server, "TO_ASK", 0.05)
    # Longer: the client that reads needs a processor meanwhile.
    monkeypatch.setattr(server, "TO_READ", 0.5)
    served._take = lambda: {**_SAMPLE, "much": "x" * 900_000}
    silent = [_connected(served) for _ in range(server.CLIENTS + 4)]
    full = [_connected(served) for _ in range(server.CLIENTS + 4)]
    for one in full:
        one.sendall(protocol.REQUEST)
    assert len(client.ask(os.getpid(), served.path)["much"]) == 900_000
    # Their ends are seen without a word from us.
    for one in silent:
        assert _all_that_comes(one) == b""
    # The answer came when CLIENTS - 1 of them were left, at most.
    for one in full[:5]:
        assert len(_all_that_comes(one)) < 900_000
    for one in silent + full:
        one.close()
    assert served._thread.is_alive()


def test_whoever_asks_at_once_shares_a_sample(served, monkeypatch):
    monkeypatch.setattr(server, "BETWEEN", 0.5)
    taken = []
    served._take = lambda: taken.append(1) or {
        **_SAMPLE, "n": len(taken)}
    assert client.ask(os.getpid(), served.path)["n"] == 1
    asked = [client.Question(os.getpid(), served.path) for _ in range(5)]
    answers = []
    for one in asked:
        while (answer := one.advance()) is None:
            select.select([one], [], [], 60)
        answers.append(answer["n"])
        one.close()
    assert answers == [2] * 5


def test_a_sample_that_fails_is_a_sentence(served):
    def take():
        raise RuntimeError("the device is lost")

    served._take = take
    with pytest.raises(client.AttachError, match="the device is lost"):
        client.ask(os.getpid(), served.path)
    assert served._thread.is_alive()


def test_an_answer_has_a_bound_on_both_sides(served, runtime):
    served._take = lambda: {"much": "x" * protocol.LONGEST_ANSWER}
    with pytest.raises(client.AttachError, match="longer than an answer"):
        client.ask(os.getpid(), served.path)

    def flood(listener):
        connected, _ = listener.accept()
        with connected:
            try:
                while True:
                    connected.send(b"x" * 65536)
            except OSError:
                pass  # it has gone

    served.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(served.path)
        listener.listen()
        thread = threading.Thread(target=flood, args=(listener,))
        thread.start()
        with pytest.raises(client.AttachError, match="more than an answer"):
            client.ask(os.getpid(), served.path)
        thread.join()


@pytest.mark.parametrize("answer, said", [
    (b"hello\n", "no answer of this protocol"), (b"[1]\n", "no answer of this"),
    (b'{"version": 2}\n', "version 2"), (b"", "does not serve any more")])
def test_a_server_that_is_none_of_ours(runtime, answer, said):
    path = f"{runtime}/{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        question = client.Question(os.getpid(), path)
        connected, _ = listener.accept()
        connected.sendall(answer)
        connected.close()
        with pytest.raises(client.AttachError, match=said):
            while question.advance() is None:
                select.select([question], [], [], 60)
        question.close()


def test_a_socket_that_is_named_after_another_process(served):
    with pytest.raises(client.AttachError, match=f"process {os.getpid()}, "
                       "which is not the one.*not asked anything"):
        client.ask(os.getppid(), served.path)


def test_a_server_that_is_late_is_told_as_that(runtime, monkeypatch):
    monkeypatch.setattr(client, "PATIENCE", 0.05)
    path = f"{runtime}/{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(client.Late, match="is stopped, or keeps Python"):
            client.ask(os.getpid(), path)


def test_the_end_removes_the_socket_but_no_others(served):
    path = served.path
    served.close()
    assert not os.path.exists(path)
    with pytest.raises(client.AttachError, match="cannot be seen.*run --live"):
        client.path_of(os.getpid())
    again = server.Server(dict)
    os.unlink(path)
    open(path, "w", encoding="utf-8").close()  # somebody else's
    again.close()
    assert os.path.exists(path)


def test_what_the_dead_left_is_told_and_removed(runtime):
    done = _child("""
        import os
        from stratalloc._live import server
        print(os.getpid(), server.serve(), flush=True)
        os.kill(os.getpid(), 9)
    """)
    pid, path = done.stdout.split()
    assert done.returncode == -9 and os.path.exists(path)
    with pytest.raises(client.Ended, match=f"{pid} has ended without.*killed"):
        client.ask(int(pid), path)
    assert not os.path.exists(path)
    with pytest.raises(client.AttachError, match=f"no process {pid}"):
        client.path_of(int(pid))


def test_a_program_that_became_another_one_is_told_as_that(runtime):
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import os, sys
            from stratalloc._live import server
            print(server.serve(), flush=True)
            os.execv(sys.executable, [sys.executable, "-c",
                "import sys; print('other', flush=True); sys.stdin.read()"])
        """)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    path = child.stdout.readline().strip()
    assert child.stdout.readline() == "other\n"
    with pytest.raises(client.AttachError,
                       match=f"process {child.pid} runs, and nobody serves"):
        client.ask(child.pid, path)
    assert os.path.exists(path), "the process lives"
    assert client.all_of_them()[0] == []
    child.communicate("")


def test_a_forked_child_has_none_until_it_makes_its_own(runtime):
    done = _child("""
        import os, socket
        from stratalloc._live import client, server
        path = server.serve()
        files = set(os.listdir("/proc/self/fd"))
        child = os.fork()
        if child == 0:
            left = [os.readlink(f"/proc/self/fd/{one}") for one in files
                    if os.path.exists(f"/proc/self/fd/{one}")]
            assert not any("socket" in one for one in left), left
            assert os.path.exists(path)
            own = server.serve()
            assert own != path and client.ask(os.getpid(), own)["pid"] == (
                os.getpid())
            server._server.close()
            assert not os.path.exists(own) and os.path.exists(path)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert client.ask(os.getpid(), path)["pid"] == os.getpid()
        print("both")
    """)
    assert done.stdout == "both\n", done.stderr
    assert os.listdir(f"{runtime}/stratalloc") == []


def test_a_program_that_closes_all_files_only_loses_the_socket(runtime):
    done = _child("""
        import os
        from stratalloc._live import server
        server.serve()
        os.closerange(3, 256)
        # Waits for nothing: the thread sees it when it next looks.
        server._server.close()
        print("ended")
    """)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


@pytest.mark.parametrize("make, said", [
    (lambda name: os.mkdir(name, 0o777) or os.chmod(name, 0o777),
     "is open to others"),
    (lambda name: os.symlink("/tmp", name), "is no folder"),
    pytest.param(lambda name: os.mkdir(name) or os.chown(name, NOBODY, NOBODY),
                 "belongs to another user", marks=_needs_another_user),
    (lambda name: open(name, "w", encoding="utf-8").close(), "is no folder")])
def test_a_folder_in_tmp_that_cannot_be_trusted(runtime, monkeypatch, caplog,
                                                make, said):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(socket_path, "_SHARED", runtime)
    make(f"{runtime}/stratalloc-{os.geteuid()}")
    with pytest.raises(RuntimeError, match=said):
        socket_path.folder()
    # The program goes on, and hears why.
    assert server.serve() is None
    assert said in caplog.text and "cannot be seen" in caplog.text


def test_a_runtime_folder_that_is_not_ours_is_not_used(runtime, monkeypatch):
    monkeypatch.setattr(socket_path, "_SHARED", runtime)
    fallback = f"{runtime}/stratalloc-{os.geteuid()}"
    for where in ("relative", f"{runtime}/missing", f"{runtime}/{'x' * 90}"):
        if len(where) > 90:
            os.mkdir(where, 0o700)  # it is ours, but a path in it is too long
        monkeypatch.setenv("XDG_RUNTIME_DIR", where)
        assert socket_path.folder() == fallback
    os.chmod(runtime, 0o711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert socket_path.folder() == fallback


def _socket_at(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(path)


@pytest.mark.parametrize("spoil", [
    lambda folder, spare: os.chmod(folder, 0o755),
    lambda folder, spare: os.rename(folder, spare) or os.symlink(spare, folder),
    lambda folder, spare: os.rename(folder, f"{folder}1"),
    lambda folder, spare: os.rename(folder, f"{folder}x")])
def test_root_looks_into_no_folder_that_is_not_its_owners(runtime, monkeypatch,
                                                          spoil):
    monkeypatch.setattr(socket_path, "_SHARED", runtime)
    monkeypatch.setattr(socket_path, "_RUN", f"{runtime}/none")
    folder = f"{runtime}/stratalloc-{os.geteuid()}"
    os.mkdir(folder, 0o700)
    _socket_at(f"{folder}/7.sock")
    assert socket_path.found(0) == [(7, f"{folder}/7.sock")]
    spoil(folder, f"{runtime}/spare")
    assert socket_path.found(0) == []


def test_only_sockets_of_the_folders_owner_are_found_and_removed(runtime,
                                                                 monkeypatch):
    # Root would look into the folders of all users of this machine.
    monkeypatch.setattr(socket_path, "_SHARED", runtime)
    monkeypatch.setattr(socket_path, "_RUN", f"{runtime}/none")
    folder = socket_path.folder()
    _socket_at(f"{folder}/7.sock")
    open(f"{folder}/8.sock", "w", encoding="utf-8").close()
    os.symlink("7.sock", f"{folder}/9.sock")
    assert socket_path.found() == [(7, f"{folder}/7.sock")]
    assert not socket_path.remove(f"{folder}/8.sock")
    assert not socket_path.remove(f"{folder}/9.sock")
    with monkeypatch.context() as patch:
        me = os.geteuid()
        patch.setattr(os, "geteuid", lambda: me + 1)
        assert not socket_path.remove(f"{folder}/7.sock")
    os.symlink(folder, f"{runtime}/link")
    assert not socket_path.remove(f"{runtime}/link/7.sock")
    assert sorted(os.listdir(folder)) == ["7.sock", "8.sock", "9.sock"]
    assert socket_path.remove(f"{folder}/7.sock")
    assert sorted(os.listdir(folder)) == ["8.sock", "9.sock"]


def test_what_the_dead_of_another_user_left_stays(runtime, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path = f"{socket_path.folder()}/{ended.pid}.sock"
    _socket_at(path)
    monkeypatch.setattr(socket_path, "_is_socket", lambda *_: False)
    with pytest.raises(client.Ended, match="as one that is killed does$"):
        client.ask(ended.pid, path)
    assert os.path.exists(path)


_ASK_AS_NOBODY = """
    import os, sys
    from stratalloc._live import client
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        print(client.ask(int(sys.argv[1]), sys.argv[2]))
    except client.AttachError as error:
        print("refused:", error)
"""


@_needs_another_user
def test_another_users_process_cannot_be_read(served, runtime):
    pid = str(os.getpid())
    closed = _child(_ASK_AS_NOBODY, pid, served.path)
    assert closed.stdout.startswith("refused: process ") and (
        "belongs to root" in closed.stdout), closed.stderr
    # Even if somebody opens folder and file: whom it serves is its own matter,
    # and the client does not ask who is not its user's.
    os.chmod(runtime, 0o755)
    os.chmod(os.path.dirname(served.path), 0o755)
    os.chmod(served.path, 0o666)
    asked = _child(_ASK_AS_NOBODY, pid, served.path)
    assert "is served by root (uid 0)" in asked.stdout, asked.stderr
    raw = _child("""
        import os, socket, sys
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(sys.argv[1])
        print(one.recv(1 << 16).decode())
    """, served.path)
    answer = json.loads(raw.stdout)
    assert "its owner and root may look" in answer["error"]
    assert "devices" not in answer


@_needs_another_user
def test_root_reads_the_process_of_another_user(runtime, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import os, sys
            from python_shim.stratalloc._live.tests import live_samples
            from stratalloc._live import server
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
            made = server.Server(lambda: {
                **live_samples.sample(), "pid": os.getpid()})
            print(made.path, flush=True)
            sys.stdin.read()
            made.close()
        """)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    path = child.stdout.readline().strip()
    assert path == f"/tmp/stratalloc-{NOBODY}/{child.pid}.sock"
    assert client.path_of(child.pid) == path
    assert client.ask(child.pid, path)["pid"] == child.pid
    child.communicate("")
    assert not os.path.exists(path)
    with contextlib.suppress(OSError):  # another program's socket is there
        os.rmdir(os.path.dirname(path))
