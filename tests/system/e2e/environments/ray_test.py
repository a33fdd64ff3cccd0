# SPDX-License-Identifier: Apache-2.0
"""Two workers of Ray on this machine train what is larger than their device.

Ray is of third_party/pip/long.txt, which `./dev test --long` installs.
"""

import os

from tests.system.e2e import running
from tests.system.e2e.environments import starting


def test_workers_of_ray_train_under_the_allocator(tmp_path):
    found = tmp_path / "found"
    found.mkdir()
    done = starting.launched(
        "import runpy, sys; del sys.argv[0]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')",
        starting.program("ray_workers.py"), found,
        starting.settings("host_budget:96MiB"),
        RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    running.must_work(done)
    facts = starting.all_trained(found, 2)
    assert [one["host_budget"] for one in facts] == [96 << 20] * 2
    assert os.listdir(tmp_path) == ["found"]
