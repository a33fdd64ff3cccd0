# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and FSDP2 (fully_shard) over gloo, unpatched."""

import os

from tests.system.e2e.consumers import asking


def test_two_processes(tmp_path):
    saw = asking.same_everywhere(
        asking.WAYS, "parallel.two_processes", FOLDER=os.fspath(tmp_path))["two_processes"]
    assert saw["other"] == 0
    ddp, fsdp = saw["ddp"], saw["fsdp"]
    # The same training, each gradient the mean of two.
    assert [round(loss, 5) for loss in ddp["losses"]] == [
        round(loss, 5) for loss in fsdp["losses"]]
    assert len(set(ddp["losses"])) == 4
    # Half the parameters and half of Adam's two moments live here.
    current = "requested_bytes.all.current"
    assert fsdp["counts"][current] < ddp["counts"][current]
