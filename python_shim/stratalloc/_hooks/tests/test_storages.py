# SPDX-License-Identifier: Apache-2.0
"""A storage that is resized has its bytes, wherever these were."""

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=5)

import torch  # noqa: E402

from python_shim.testing.foreign_kernels import (  # noqa: E402,F401
    MIB, clean, parameter, staying)
from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.evicting import evicting  # noqa: E402
import stratalloc  # noqa: E402


def _evict(tensor):
    torch.cuda.synchronize()
    assert stratalloc.evict(tensor) >= tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("size", [2 * MIB, MIB // 2], ids=["grown", "shrunk"])
@pytest.mark.parametrize("storage_of", [
    lambda t: t.untyped_storage(), lambda t: t.detach().view(-1).storage(),
], ids=["untyped", "typed"])
def test_resized_storage_of_evicted_tensor_keeps_its_bytes(size, storage_of):
    weight = parameter()
    right = weight.detach().cpu()
    _evict(weight)
    storage = storage_of(weight)
    storage.resize_(size // storage.element_size()
                    if isinstance(storage, torch.TypedStorage) else size)
    assert weight.untyped_storage().nbytes() == size
    kept = torch.empty(0, device="cuda").set_(weight.untyped_storage())
    count = min(len(right), len(kept))
    assert torch.equal(kept[:count].cpu(), right[:count])


def test_resized_storage_beside_evictions_keeps_its_bytes():
    weights = [parameter(seed=seed) for seed in range(16)]
    right = [weight.detach().cpu() for weight in weights]
    with evicting():
        for weight in weights:
            weight.untyped_storage().resize_(2 * MIB)
    for weight, values in zip(weights, right):
        assert torch.equal(weight.detach().cpu(), values)


def test_storage_freed_and_made_again_is_brought_back_by_neither():
    weight = parameter()
    _evict(weight)
    storage = weight.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(MIB)
    with torch.no_grad():
        assert torch.equal(weight.fill_(3).cpu(), torch.full((MIB // 4,), 3.0))


def test_resize_that_does_not_fit_leaves_the_storage():
    weight = parameter(8 * MIB)
    right = weight.detach().cpu()
    _evict(weight)
    held = staying(44)
    with pytest.raises(torch.OutOfMemoryError):
        weight.untyped_storage().resize_(16 * MIB)
    del held
    assert weight.untyped_storage().nbytes() == 8 * MIB
    assert torch.equal(weight.detach().cpu(), right)


def test_resize_of_other_storages_and_bad_sizes_are_torchs():
    on_host = torch.arange(4.0)
    on_host.untyped_storage().resize_(32)
    assert on_host.untyped_storage().nbytes() == 32
    weight = parameter()
    _evict(weight)
    for size in ("many", -1):
        with pytest.raises((TypeError, RuntimeError)):
            weight.untyped_storage().resize_(size)
    assert torch.UntypedStorage.resize_.__name__ == "resize_"
