# SPDX-License-Identifier: Apache-2.0
"""`stratalloc run --record`, and what is left of a program that was killed."""

import os
import signal
import subprocess
import sys

import pytest

from stratalloc import _core
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


def start(folder, *options, steps=2, end="", **more):
    path = folder / "script.py"
    path.write_text(_PROGRAM.format(steps=steps, end=end))
    return subprocess.Popen(
        [sys.executable, "-m", "stratalloc", "run", "--simulate", "64MiB",
         *options, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **more}, cwd=folder)


def finish(process):
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


@pytest.mark.parametrize("end, code", [("", 0), ("raise KeyError", 1),
                                       ("raise SystemExit(5)", 5)])
def test_a_program_leaves_a_recording_however_it_ends(tmp_path, end, code):
    done, _, error = finish(start(tmp_path, "--record", "r.strata", end=end))
    assert done == code, error
    run = recording.read(str(tmp_path / "r.strata"))
    assert identities.check(run) == []
    assert "Recorded.0" in run.scopes
    assert run.devices[0].stats["num_ooms"] == 0
    assert not (tmp_path / "r.strata.running").exists()


def test_a_killed_program_leaves_what_is_recovered(tmp_path):
    process = start(tmp_path, "--record", "r.strata", steps=50,
                    end="print('here', flush=True)\nwhile True: net(torch."
                    "randn(8, 64, device='cuda'))")
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL
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
    done, _, error = finish(start(tmp_path, "--record", "r.strata"))
    assert done == 2 and "stratalloc recover" in error


@pytest.mark.parametrize("options, says", [
    (("--record", "no/folder/x"), "No such file"),
    (("--record", "."), "it is a directory"),
    (("--redact",), "--record FILE"),
    (("--record", "x", "--allocator", "native"), "_record_memory_history"),
])
def test_what_cannot_be_recorded_is_said_before_the_program(tmp_path, options,
                                                             says):
    done, out, error = finish(start(tmp_path, *options, end="print('ran')"))
    assert (done, out) == (2, "")
    assert says in error and "Traceback" not in error


def test_a_child_of_a_fork_records_nothing(tmp_path):
    end = ("import os\npid = os.fork()\nif pid == 0: os._exit(0)\n"
           "os.waitpid(pid, 0)\nnet(torch.randn(8, 64, device='cuda'))")
    done, _, error = finish(start(tmp_path, "--record", "r.strata", end=end))
    assert done == 0, error
    assert identities.check(recording.read(str(tmp_path / "r.strata"))) == []
