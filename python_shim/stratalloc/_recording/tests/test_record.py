# SPDX-License-Identifier: Apache-2.0
"""`stratalloc run --record`, and what is left of a program that was killed."""

import os
import signal
import stat

import pytest

from bazel import programs
from stratalloc._native import core as _core
from stratalloc.telemetry import identities, recording
from stratalloc.telemetry.model import Kind

_PROGRAM = """
import torch
class Recorded(torch.nn.Sequential): pass
net = Recorded(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
for i in range({steps}):
    net(torch.randn(8, 64, device="cuda")).sum().backward()
{end}
"""


def execute(folder, *options, steps=2, end="", program=_PROGRAM, **more):
    """(exit code, stdout, stderr) of the program."""
    path = folder / "script.py"
    path.write_text(program.format(steps=steps, end=end))
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "64MiB", *options, path,
        env={**os.environ, **more}, cwd=folder)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("end, code", [("", 0), ("raise KeyError", 1),
                                       ("raise SystemExit(5)", 5)])
def test_a_program_leaves_a_recording_however_it_ends(tmp_path, end, code):
    done, _, error = execute(tmp_path, "--record", "r.strata", end=end)
    assert done == code, error
    run = recording.read(str(tmp_path / "r.strata"))
    assert identities.check(run) == []
    assert "Recorded.0" in run.scopes
    assert run.devices[0].stats["num_ooms"] == 0
    assert not (tmp_path / "r.strata.running").exists()


def test_a_killed_program_leaves_what_is_recovered(tmp_path):
    end = ("import subprocess\nsubprocess.Popen(['sh', '-c', 'kill -9 $PPID'])"
           "\nwhile True: net(torch.randn(8, 64, device='cuda'))")
    code, _, error = execute(tmp_path, "--record", "r.strata", steps=50,
                             end=end)
    assert code == -signal.SIGKILL, error
    running = tmp_path / "r.strata.running"
    with pytest.raises(recording.RecordingError, match="stratalloc recover"):
        recording.read(str(running))
    _core.recover_recording(running, tmp_path / "saved", redact=False)
    run = recording.read(str(tmp_path / "saved"))
    assert run.torn
    assert identities.check(run) == []
    assert "Recorded.0" in run.scopes
    assert (run.events["kind"] == Kind.ALLOC).sum() > 100
    # Another recording there is refused until somebody has decided.
    done, _, error = execute(tmp_path, "--record", "r.strata")
    assert done == 2 and "stratalloc recover" in error


def test_what_a_redacted_program_leaves_has_no_names(tmp_path):
    code, _, error = execute(tmp_path, "--record", "r.strata", "--redact",
                             end="import os; os.kill(os.getpid(), 9)")
    assert code == -signal.SIGKILL, error
    _core.recover_recording(tmp_path / "r.strata.running", tmp_path / "saved",
                            redact=False)
    assert b"Recorded" not in (tmp_path / "saved").read_bytes()
    assert recording.read(str(tmp_path / "saved")).redacted


def test_a_pipe_is_not_replaced_by_a_recording(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done, _, error = execute(tmp_path, "--record", "pipe")
    assert done == 2 and "it is no regular file" in error
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_program_may_remove_the_file_of_its_rings(tmp_path):
    done, _, error = execute(
        tmp_path, "--record", "r.strata",
        end="import os; os.unlink('r.strata.running')")
    assert done == 0 and "Traceback" not in error
    assert identities.check(recording.read(str(tmp_path / "r.strata"))) == []


@pytest.mark.parametrize("options, says", [
    (("--record", "no/folder/x"), "there is no folder"),
    (("--record", "."), "it is a directory"),
    (("--record", "r.trace.json"), "give r.trace.json.strata"),
    (("--record", "recorded"), "`stratalloc convert` makes other formats"),
    (("--redact",), "--record FILE"),
    (("--record", "x", "--allocator", "native"), "_record_memory_history"),
])
def test_what_cannot_be_recorded_is_said_before_the_program(tmp_path, options,
                                                             says):
    done, out, error = execute(tmp_path, *options, end="print('ran')")
    assert (done, out) == (2, "")
    assert says in error and "Traceback" not in error


def test_the_level_may_record_more(tmp_path):
    """Rings are begun once: by the recording, before the level does."""
    done, _, error = execute(tmp_path, "--record", "r.strata", "--conf",
                                  "telemetry:full")
    assert done == 0, error
    run = recording.read(str(tmp_path / "r.strata"))
    assert identities.check(run) == []
    assert run.level == "full"
    made = run.events[run.events["kind"] == Kind.ALLOC]
    assert any(one.function == "<module>" and one.file.endswith("script.py")
               for site in set(made["site"].tolist())
               for one in run.stack(site))


def test_a_child_of_a_fork_records_nothing(tmp_path):
    end = ("import os\npid = os.fork()\nif pid == 0: os._exit(0)\n"
           "os.waitpid(pid, 0)\nnet(torch.randn(8, 64, device='cuda'))")
    done, _, error = execute(tmp_path, "--record", "r.strata", end=end)
    assert done == 0, error
    assert identities.check(recording.read(str(tmp_path / "r.strata"))) == []


def test_a_fork_that_ends_as_its_parent_leaves_the_file_alone(tmp_path):
    """Before CUDA is used, too: what it does is in nobody's rings."""
    end = ("import os, sys\npid = os.fork()\nif pid == 0: sys.exit(0)\n"
           "assert os.waitpid(pid, 0)[1] == 0\n"
           "assert os.path.exists('r.strata.running')\n"
           "net(torch.randn(8, 64, device='cuda'))")
    program = ("import os, stratalloc\npid = os.fork()\nif pid == 0:\n"
               "    with stratalloc.scope('the child'): os._exit(0)\n"
               "assert os.waitpid(pid, 0)[1] == 0\n" + _PROGRAM)
    done, _, error = execute(tmp_path, "--record", "r.strata", end=end,
                                  program=program)
    assert done == 0, error
    run = recording.read(str(tmp_path / "r.strata"))
    assert identities.check(run) == []
    assert "the child" not in run.scopes and "Recorded.0" in run.scopes
    assert "children" not in error


_CHILDREN = """
import os, signal, subprocess, sys
import torch

def use(name):
    import stratalloc
    stratalloc.scope(name)(torch.randn)(64, 64, device="cuda")

def work(rank, how):
    use(f"Secret.{{how}}.{{rank}}")
    if how == "killed":
        print(os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

def nothing(rank):
    torch.ones(3) + rank

if __name__ == "__main__":
    {end}
"""


def children(folder, end, *options, **more):
    """(code, stdout, stderr, {name: Run} of whole files, names of the rest)"""
    code, out, error = execute(folder, "--record", "r.strata", *options,
                               end=end, program=_CHILDREN, **more)
    whole, rest = {}, []
    for path in sorted(folder.glob("r.strata*")):
        if path.suffix == ".running":
            rest.append(path.name)
        else:
            whole[path.name] = recording.read(str(path))
            assert identities.check(whole[path.name]) == [], path
            assert (path.stat().st_mode & 0o777) == 0o600
    return code, out, error, whole, rest


def names(run):
    return [name for name in run.scopes if name.startswith("Secret")]


@pytest.mark.parametrize("method", [
    "spawn", pytest.param("forkserver", marks=pytest.mark.long), "fork"])
def test_children_of_multiprocessing_record_to_files_of_their_own(tmp_path,
                                                                  method):
    """Fork: its rings would be its parent's, so it records nothing."""
    code, _, error, whole, rest = children(tmp_path, f"""
    import torch.multiprocessing as mp
    context = mp.get_context("{method}")
    started = [context.Process(target=work, args=(i, "plain"))
               for i in range(2)]
    started.append(context.Process(target=nothing, args=(1,)))
    for one in started: one.start()
    for one in started: one.join()
    print([one.exitcode for one in started])
    """)
    assert code == 0 and rest == [], error
    assert whole.pop("r.strata").about["pid"] > 0
    if method == "fork":
        assert not whole and "children" not in error
        return
    assert len(whole) == 2, error
    assert sorted(name for run in whole.values() for name in names(run)) == [
        "Secret.plain.0", "Secret.plain.1"]
    for name, run in whole.items():
        assert name == f"r.strata.{run.about['pid']}"
        assert str(tmp_path / name) in error
        assert (run.events["kind"] == Kind.ALLOC).any()
    assert error.count("--record: children recorded") == 1


def test_workers_of_a_launcher_are_their_ranks(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(_CHILDREN.format(
        end="work(int(os.environ['RANK']), 'worker')"))
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "64MiB", "--record",
        "r.strata", "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--master-port", "0", worker, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        run = recording.read(str(tmp_path / f"r.strata.rank{rank}"))
        assert identities.check(run) == []
        assert (run.about["rank"], run.about["world_size"]) == (rank, 2)
        assert names(run) == [f"Secret.worker.{rank}"]
    assert sorted(path.name for path in tmp_path.glob("r.strata*")) == [
        "r.strata", "r.strata.rank0", "r.strata.rank1"]


def test_a_rank_that_is_there_already_in_this_run_has_another_name(tmp_path):
    """A worker that was started again, and yesterday's file."""
    (tmp_path / "r.strata.rank3").write_text("of yesterday")
    os.utime(tmp_path / "r.strata.rank3", (1, 1))
    code, _, error, whole, rest = children(tmp_path, """
    for _ in range(2):
        subprocess.run([sys.executable, "-c", "import torch; "
                        "torch.ones(3, device='cuda')"], check=True,
                       env={**os.environ, "RANK": "3"})
    """)
    assert code == 0 and rest == [], error
    first = whole["r.strata.rank3"]
    assert first.about["rank"] == 3
    (other,) = set(whole) - {"r.strata", "r.strata.rank3"}
    assert other == f"r.strata.rank3.{whole[other].about['pid']}"


def test_a_killed_child_leaves_what_is_recovered(tmp_path):
    code, out, error, whole, rest = children(tmp_path, """
    import torch.multiprocessing as mp
    one = mp.get_context("spawn").Process(target=work, args=(0, "killed"))
    one.start(); one.join()
    """)
    pid = int(out)
    assert code == 0 and rest == [f"r.strata.{pid}.running"]
    assert list(whole) == ["r.strata"]
    assert rest[0] in error and "stratalloc recover" in error
    _core.recover_recording(tmp_path / rest[0], tmp_path / "saved",
                            redact=False)
    run = recording.read(str(tmp_path / "saved"))
    assert run.torn and names(run) == ["Secret.killed.0"]
    assert identities.check(run) == []
    # It is in nobody's way, but one that lives is: it still writes.
    code, _, error = execute(tmp_path, "--record", "r.strata")
    assert code == 0 and error.count(rest[0]) == 1 and "recover" in error
    assert recording.read(str(tmp_path / "r.strata")).events.size
    lives = tmp_path / f"r.strata.{os.getpid()}.running"
    (tmp_path / rest[0]).rename(lives)
    code, _, error = execute(tmp_path, "--record", "r.strata")
    assert code == 2 and lives.name in error
    lives.rename(tmp_path / "r.strata.rank0.running")
    code, _, error = execute(tmp_path, "--record", "r.strata")
    assert code == 2 and "rank0.running is there" in error


def test_a_users_own_files_are_no_childs(tmp_path):
    for name in ("json", "rank", "0", "running.old", "rank1.json"):
        (tmp_path / f"r.strata.{name}").write_text("mine")
    (tmp_path / "r.strata.json.running").write_text("mine")
    code, _, error = execute(
        tmp_path, "--record", "r.strata",
        end="for name in ('json', 'csv', '7x'):\n"
            "    open('r.strata.' + name, 'w').close()")
    assert code == 0 and "r.strata." not in error


def test_children_are_redacted_as_their_parent(tmp_path):
    code, _, error, whole, rest = children(tmp_path, """
    import torch.multiprocessing as mp
    mp.spawn(work, ("plain",), nprocs=1)
    """, "--redact")
    assert code == 0 and rest == [] and len(whole) == 2, error
    for name, run in whole.items():
        assert run.redacted and not run.about
        assert b"Secret" not in (tmp_path / name).read_bytes()


def test_a_childs_level_is_the_environments(tmp_path):
    code, _, error, whole, _ = children(tmp_path, """
    import torch.multiprocessing as mp
    mp.spawn(work, ("plain",), nprocs=1)
    """, STRATALLOC_CONF="telemetry:full")
    assert code == 0, error
    (run,) = [run for name, run in whole.items() if name != "r.strata"]
    assert run.level == "full"
    made = run.events[run.events["kind"] == Kind.ALLOC]
    assert "work" in {one.function for one in run.stack(int(made["site"][0]))}


def test_a_child_that_traces_itself_is_recorded_whole(tmp_path):
    """Where rings lie is said once: by who needs them in a file."""
    code, _, error, whole, _ = children(tmp_path, """
    subprocess.run([sys.executable, "-c", "import torch, stratalloc\\n"
                    "with stratalloc.trace('own.strata') as trace: pass\\n"
                    "torch.ones(3, device='cuda')"], check=True)
    """)
    assert code == 0 and "not recorded" not in error, error
    (run,) = [run for name, run in whole.items() if name != "r.strata"]
    assert (run.events["kind"] == Kind.ALLOC).sum() == 1
    assert recording.read(str(tmp_path / "own.strata")).events.size == 0


def test_a_child_that_cannot_record_says_so_and_goes_on(tmp_path):
    code, out, error, whole, _ = children(tmp_path, """
    import json
    said = json.loads(os.environ["STRATALLOC_RECORD"])
    said["file"] = "/no/folder/x"
    os.environ["STRATALLOC_RECORD"] = json.dumps(said)
    import torch.multiprocessing as mp
    mp.spawn(work, ("plain",), nprocs=1)
    print("went on")
    """)
    assert (code, out) == (0, "went on\n"), error
    assert list(whole) == ["r.strata"]
    assert error.count("is not recorded") == 1 and "Traceback" not in error
