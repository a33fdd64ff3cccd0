# SPDX-License-Identifier: Apache-2.0
"""Libraries that register operators after the bridge is installed."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="128MiB")

# pylint: disable=wrong-import-position
import pytest
import torch


def test_torchvision_loaded_late():
    boxes = torch.tensor(
        [[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]]
    )
    scores = torch.tensor([0.9, 0.8, 0.7])
    image = torch.arange(256.0).view(1, 1, 16, 16)
    on_device = [boxes.cuda(), scores.cuda(), image.cuda()]

    import torchvision  # pylint: disable=import-outside-toplevel

    # Nothing on the device ran since: install() looks for what is new.
    assert DEVICE.bridge.cudasim_bridge_install() == DEVICE.operators
    before = DEVICE.bridged()
    kept = torchvision.ops.nms(*on_device[:2], 0.5)
    assert kept.is_cuda and kept.tolist() == [0, 2]
    assert DEVICE.bridged() > before

    results = []
    for b, i in ((boxes, image), (on_device[0], on_device[2])):
        leaf = i.clone().requires_grad_()
        rois = torch.cat([b.new_zeros(3, 1), b / 4], 1)
        pooled = torchvision.ops.roi_align(leaf, rois, 2, aligned=True)
        pooled.square().sum().backward()
        results.append((pooled, leaf.grad))
    for a, b in zip(*results):
        assert torch.equal(a, b.cpu())
    assert DEVICE.launches_without_twin() == 0


def test_operators_written_in_python_are_left_alone():
    seen = []

    @torch.library.custom_op("bridge_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.device.type)
        return x * 2

    assert twice(torch.ones(3, device="cuda")).sum().item() == 6
    torch.ones(1, device="cuda").add_(1)  # looks for new operators
    assert twice(torch.ones(3, device="cuda")).sum().item() == 6
    assert seen == ["cuda", "cuda"]


def test_kernels_for_one_device_only():
    with torch.library._scoped_library("bridge_test2", "DEF") as library:
        library.define("only_cpu(Tensor x) -> Tensor")
        library.impl("only_cpu", lambda x: x + 1, "CPU")
        torch.ones(1, device="cuda").add_(1)
        with pytest.raises(NotImplementedError, match="only_cpu"):
            torch.ops.bridge_test2.only_cpu(torch.ones(1, device="cuda"))
