# SPDX-License-Identifier: Apache-2.0
"""Processes with few rights train what is larger than their device."""

import errno
import json
import os

import pytest

from tests.system.e2e import running
from tests.system.e2e.environments import starting

_TRAINS = starting.program("too_large.py")
_DISK = "host_budget:16MiB,disk_budget:256MiB"


def _run(rights, conf, *options, program=_TRAINS, arguments=(), **more):
    return running.python(
        starting.program("confined.py"), rights, "run", *starting.device(),
        "--conf", starting.settings(conf), *options, program, *arguments,
        **more)


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """One that every user may write to."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return str(folder)


@pytest.mark.parametrize("name", [
    "EPERM", pytest.param("ENOSYS", marks=pytest.mark.long)])
def test_spilling_without_io_uring_uses_plain_transfers(folder, name):
    done = _run(f"io_uring={name}", _DISK, TMPDIR=folder)
    facts = starting.trained(done)
    assert facts["disk_mode"].startswith("preadv2/pwritev2"), facts
    assert facts["to_disk"] > 0 and facts["from_disk"] > 0, facts
    lines = done.stderr.splitlines()
    assert f"confined: io_uring_setup -1 {name}" in lines
    reason = os.strerror(getattr(errno, name))
    assert [line for line in lines if "io_uring_setup" in line][1:] == [
        "stratalloc: the disk tier works without io_uring, one transfer after "
        f"the other (io_uring_setup: {reason})"]


def _shared(rights, method):
    # The path of a forkserver's socket has at most 108 bytes.
    done = _run(f"{rights},io_uring=EPERM", "host_budget:16MiB,disk_budget:0",
                program=starting.program("shared.py"), arguments=[method],
                TMPDIR="/tmp")
    return json.loads(running.must_work(done).splitlines()[-1])


@pytest.mark.parametrize("method", [
    "spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_tensors_are_shared_where_descriptors_cannot_be_taken(method):
    """Docker's default profile refuses pidfd_getfd, and root's rights are no
    help."""
    facts = _shared("ordinary", method)
    ended = facts.pop("after_its_end")
    child = facts.pop("child")
    assert facts == {
        "child_got": 1 << 20, "parent_got": 2 << 20, "while_it_lives": "",
        "parent_still_has": 2 << 20,
    }
    assert ended.startswith(f"pidfd_open:No such process. There is no process "
                            f"{child} here: the sender has ended, ")
    assert "connect: Connection refused (it has ended, " in ended


@pytest.mark.long
def test_tensor_that_no_way_shares_names_the_causes():
    """The sender can make no socket either, and shares nevertheless."""
    facts = _shared("ordinary,packets", "spawn")
    error = facts.pop("error")
    assert facts == {}
    assert error.startswith("pidfd_getfd: Operation not permitted. The kernel ")
    for cause in ("--cap-add=SYS_PTRACE", "kernel.yama.ptrace_scope",
                  "of this pid namespace is not the sender",
                  "did not give it either: the sender names none"):
        assert cause in error


def test_ordinary_user_with_little_locked_memory_spills(folder):
    done = _run("ordinary", _DISK + ",live:on,telemetry:events", TMPDIR=folder,
                XDG_RUNTIME_DIR="")
    facts = starting.trained(done)
    assert facts["uid"] != 0
    assert facts["to_disk"] > 0 and facts["from_disk"] > 0, facts
    assert "registered" not in facts["disk_mode"], facts
    assert f"confined: uid {facts['uid']}, locks 65536\n" in done.stderr
    assert os.listdir(folder) == []


def _read_only(conf, *options):
    # No folder is named where a file could be made.
    return _run("read_only", conf, *options, TMPDIR="", XDG_RUNTIME_DIR="")


def test_read_only_file_system_leaves_host_memory_to_evict_to():
    done = _read_only("host_budget:96MiB,live:on,telemetry:events")
    facts = starting.trained(done)
    assert facts["disk_mode"] == "not opened" and facts["to_disk"] == 0, facts
    lines = done.stderr.splitlines()
    assert lines[0] in ("confined: mounts, EROFS", "confined: calls, EROFS")
    # Of what was asked for, it does without this.
    (line,) = [line for line in lines if "Read-only file system" in line]
    assert line.startswith("stratalloc: this process cannot be seen by ")


@pytest.mark.parametrize("conf, options, said", [
    ("disk_budget:256MiB", (),
     "stratalloc run: bad value 256 MiB for key 'disk_budget': /tmp cannot "
     "hold the spill file: Read-only file system; disk_dir names another "
     "directory"),
    ("disk_dir:/var/tmp", (),
     "stratalloc run: bad value '/var/tmp' for key 'disk_dir': it cannot hold "
     "the spill file: Read-only file system"),
    ("", ("--record", "/tmp/x.strata"),
     "stratalloc run: --record /tmp/x.strata: events cannot be kept in "
     "/tmp/x.strata.running: open: Read-only file system; choose a folder that "
     "can be written, on a disk with room"),
])
def test_file_asked_for_on_a_read_only_file_system_is_one_line(
        conf, options, said):
    done = _read_only(conf, *options)
    assert done.returncode in (2, 3) and done.stdout == "", done
    assert [line for line in done.stderr.splitlines() if not line.startswith(
        ("confined: ", "stratalloc: simulated CUDA: "))] == [said]


@pytest.mark.long
def test_doctor_names_what_the_process_may_not_do():
    done = running.python(
        starting.program("confined.py"), "read_only,io_uring=EPERM", "doctor",
        TMPDIR="")
    found = {line[9:27].strip(): line[28:]
             for line in done.stdout.splitlines() if line.startswith("note ")}
    assert found["spill file"] == (
        "none: no file can be made and written in /tmp: Read-only file system; "
        "disk_dir names another directory")
    assert found["io_uring"] == (
        "io_uring_setup: Operation not permitted; preadv2/pwritev2 do the I/O, "
        "one transfer after the other")
    assert found["sharing"].startswith(
        "pidfd_getfd: Operation not permitted: a process that uses stratalloc "
        "asks over a socket, ")
    assert "Traceback" not in done.stderr


def test_demo_on_a_read_only_file_system_is_one_line():
    done = running.python(starting.program("confined.py"), "read_only", "demo",
                          TMPDIR="")
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines()
               if not line.startswith("confined: ")]
    assert line.startswith("stratalloc demo: No usable temporary directory ")
    assert line.endswith("; set TMPDIR to a folder that can be written")
