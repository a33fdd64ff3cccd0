# SPDX-License-Identifier: Apache-2.0
"""Processes that a program starts opt in by the environment, and each trains
what is larger than its device."""

import pytest

from tests.system.e2e import running
from tests.system.e2e.environments import starting


def test_ranks_of_torchrun_train_and_share_host_memory(tmp_path):
    done = starting.launched(
        "import subprocess, sys; sys.exit(subprocess.run([sys.executable, "
        "'-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', "
        "*sys.argv[1:]]).returncode)", starting.program("rank.py"), tmp_path,
        STRATALLOC="1", STRATALLOC_CONF=starting.settings("disk_budget:0"))
    running.must_work(done)
    found = starting.all_trained(tmp_path, 2)
    assert {facts["rank"] for facts in found} == {0, 1}
    assert {facts["total"] for facts in found} == {3.0}
    for facts in found:
        # Half of what is available, for two.
        assert facts["host_budget"] <= starting.machine_memory() // 4
    # torchrun's own process has the allocator, uses no device and is silent.
    said = [line for line in done.stderr.splitlines()
            if line.startswith("stratalloc: ")]
    assert len(said) == 2 * running.SIMULATED, said
    assert all(" operators, " in line for line in said), said


@pytest.mark.parametrize("method", [
    "spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_processes_of_torch_multiprocessing_train(tmp_path, method):
    done = running.on_device(
        starting.MEMORY, starting.program("spawned.py"), method, tmp_path,
        conf="host_budget:96MiB",
        options=["--devices", "2"] if running.SIMULATED else [])
    running.must_work(done)
    for facts in starting.all_trained(tmp_path, 3):
        assert facts["host_budget"] == 96 << 20


@pytest.mark.parametrize("method", [
    "fork", pytest.param("spawn", marks=pytest.mark.long),
    pytest.param("forkserver", marks=pytest.mark.long)])
def test_training_on_pinned_batches_of_loader_workers(method):
    done = running.on_device(
        starting.MEMORY, starting.program("loaded.py"), method,
        conf="host_budget:16MiB,disk_budget:256MiB")
    facts = starting.trained(done)
    assert facts["to_disk"] > 0 and facts["from_disk"] > 0, facts
    # Workers do nothing on a device: they say nothing at their end.
    assert done.stderr.count(" operators, ") == running.SIMULATED
