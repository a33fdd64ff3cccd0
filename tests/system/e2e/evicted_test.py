# SPDX-License-Identifier: Apache-2.0
"""Everything evicted, then used in every ordinary way: all right afterwards."""

import json

import pytest

from tests.system.e2e import running

_USES = ("thread", "side_stream", "state_dict", "save", "deepcopy",
         "in_place_no_grad", "in_place_data", "load_state_dict",
         "forward_backward", "module_argument", "graph")


# 20 MiB of parameters: all of them in host memory, or most of them on disk.
@pytest.mark.parametrize("host_budget", [
    "4MiB", pytest.param("64MiB", marks=pytest.mark.long)])
@pytest.mark.parametrize("use", _USES)
def test_use(tmp_path, use, host_budget):
    out = tmp_path / "report.json"
    # A card's libraries have handles, which no capture lets them make.
    card = ("--card", "h200") if use == "graph" else ()
    done = running.on_device(
        "96MiB", running.program("evicted.py"), use, mode="async",
        conf=f"host_budget:{host_budget}",
        options=(*(("--seed", len(use), *card) if running.SIMULATED else ()),
                 "--json", out))
    running.must_work(done)
    running.clean_device(json.loads(out.read_text())["counters"])
