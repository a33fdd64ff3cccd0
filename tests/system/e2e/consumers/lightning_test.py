# SPDX-License-Identifier: Apache-2.0
"""Lightning's DeviceStatsMonitor, unpatched."""

import math

from tests.system.e2e.consumers import asking


def test_device_stats_monitor():
    saw = asking.same_everywhere(
        asking.WAYS, "lightning.device_stats")["device_stats"]
    assert len(saw["losses"]) == 5 and all(map(math.isfinite, saw["losses"]))
    assert saw["losses"] == saw["on the cpu"]
    # Before and after each batch.
    assert len(saw["logged"]) == 10
    for _, when, keys, counted in saw["logged"]:
        assert when.startswith("DeviceStatsMonitor.on_train_batch_")
        assert keys > len(counted) > 30
        assert counted["allocation.all.current"] > 0
