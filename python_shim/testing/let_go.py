# SPDX-License-Identifier: Apache-2.0
"""What a test on the simulated device, with the real core, ends with.

    @pytest.fixture(autouse=True)
    def clean():
        yield
        let_go()

stratalloc must be enabled.
"""

import gc

import torch

from stratalloc import simulate


def let_go(devices=1, empty_cache=False):
    """What nobody holds is freed and all work is over; `empty_cache`: so that
    the next test finds a device without memory of ours. Fails if a rule was
    broken until then, which is this test's doing and no later one's."""
    gc.collect()
    for device in range(devices):
        torch.cuda.synchronize(device)
    if empty_cache:
        torch.cuda.empty_cache()
    violations = simulate.violations()
    simulate.driver().cudasim_clear_violations()
    assert violations == []
