# SPDX-License-Identifier: Apache-2.0
"""A bug in our allocator is found within a few programs, and shrunk."""

import os
import shutil

import stratalloc
from tests.system.differential import run

BUG = os.environ["PLANTED"]


def test_the_bug_is_found_and_shrunk(tmp_path):
    # The package as it is, around the core that has the bug.
    package = tmp_path / "stratalloc"
    shutil.copytree(os.path.dirname(stratalloc.__file__), package)
    core = package / "lib" / "libstratalloc.so"
    assert core.exists()
    core.unlink()
    shutil.copy("tests/system/differential/libstratalloc.so", core)
    planted = {
        "STRATALLOC_PLANT_BUG": BUG,
        "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}",
    }
    result = run.run(range(1, 101), planted=planted, limit=1)
    (found,) = result["differences"]
    print(run.describe(found))
    # By what the first run showed: no second one was asked about it.
    assert found["said"] == ""
    assert found["again"]
    # As short as the bug can be told in, with a step or two to spare.
    assert len(found["program"]) <= 5, run.describe(found)
