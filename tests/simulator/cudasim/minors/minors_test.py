# SPDX-License-Identifier: Apache-2.0
"""The training step that `./dev minors` runs, with this PyTorch."""

import json
import os

from bazel import programs


def _run(**environment):
    return programs.run("tests/simulator/cudasim/minors/one_step.py",
                        env={**os.environ, **environment})


def test_one_step_equals_the_cpu_and_exits_clean():
    done = _run()
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["largest_difference"] == 0.0
    assert result["launches_without_twin"] == result["refused_calls"] == 0
    assert "refused" not in done.stderr


def test_an_error_on_the_way_is_not_exit_0():
    done = _run(CUDASIM_FAIL="cudaMemcpyAsync:20:1")
    assert done.returncode == 1 and "invalid argument" in done.stderr
