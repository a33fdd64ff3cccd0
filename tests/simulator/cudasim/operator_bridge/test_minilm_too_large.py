# SPDX-License-Identifier: Apache-2.0
"""A device of 64 MiB has no room for 91 MB: PyTorch's own error says so."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="64MiB")

# pylint: disable=wrong-import-position
import pytest
import torch

from tests.simulator.cudasim.operator_bridge import models


def test_native_allocator_runs_out_of_memory():
    model, _ = models.minilm()
    with pytest.raises(torch.OutOfMemoryError) as error:
        model.to("cuda")
    text = str(error.value)
    assert "CUDA out of memory. Tried to allocate" in text
    assert "64.00 MiB" in text
    assert DEVICE.peak_used() <= 64 << 20

    # The device is still usable, and what was moved can be given back.
    del model
    torch.cuda.empty_cache()
    assert torch.ones(1000, device="cuda").sum().item() == 1000
