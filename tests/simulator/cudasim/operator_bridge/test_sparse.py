# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors on the device; nested and quantized ones are refused."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="128MiB")

# pylint: disable=wrong-import-position
import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _nothing_launched():
    yield
    torch.cuda.synchronize()
    assert DEVICE.launches_without_twin() == 0


def dense(result):
    """A result as a dense CPU tensor."""
    result = result.detach().cpu()
    return result if result.layout == torch.strided else result.to_dense()


def coo(device):
    indices = torch.tensor([[0, 2, 0, 1], [1, 0, 1, 2]])
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return torch.sparse_coo_tensor(
        indices.to(device), values.to(device), (3, 4)
    )


OPERATIONS = {
    "to_dense": lambda s, d: s.to_dense(),
    "coalesce": lambda s, d: s.coalesce(),
    "values": lambda s, d: s.coalesce().values(),
    "indices": lambda s, d: s.coalesce().indices(),
    "matrix product": lambda s, d: s @ d,
    "addmm": lambda s, d: torch.sparse.addmm(d.new_ones(3, 5), s, d),
    "sparse product": lambda s, d: torch.sparse.mm(
        s, s.transpose(0, 1).coalesce()
    ),
    "sum": lambda s, d: torch.sparse.sum(s, 0),
    "add": lambda s, d: s + s,
    "dense + sparse": lambda s, d: d.new_ones(3, 4) + s,
    "times": lambda s, d: s.coalesce() * 3,
    "softmax": lambda s, d: torch.sparse.softmax(s.coalesce(), 1),
    "transpose": lambda s, d: s.t(),
    "clone": lambda s, d: s.clone(),
    "mask": lambda s, d: torch.ones_like(s.to_dense()).sparse_mask(
        s.coalesce()
    ),
    "cat": lambda s, d: torch.cat([s, s]),
    "index_select": lambda s, d: s.index_select(
        0, torch.tensor([2, 0], device=s.device)
    ),
    "csr": lambda s, d: s.coalesce().to_sparse_csr(),
    "csr product": lambda s, d: s.coalesce().to_sparse_csr() @ d,
    "csr sum": lambda s, d: s.coalesce().to_sparse_csr().to_dense() + 1,
    "from dense": lambda s, d: d.relu().to_sparse(),
    "csr from dense": lambda s, d: d.relu().to_sparse_csr(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_equals_the_cpu(name):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 5, generator=generator)
    results = []
    for device in ("cpu", "cuda"):
        result = OPERATIONS[name](coo(device), matrix.to(device))
        assert result.device.type == device
        results.append(result)
    assert results[0].layout == results[1].layout
    assert torch.allclose(dense(results[0]), dense(results[1]), atol=1e-6)


def test_in_place():
    results = []
    for device in ("cpu", "cuda"):
        s = coo(device)
        s.mul_(2)
        s.add_(coo(device))
        results.append(dense(s))
        d = torch.ones(3, 4, device=device)
        d.add_(coo(device))
        results.append(d.cpu())
        s.zero_()
        results.append(dense(s))
    for a, b in zip(results[:3], results[3:]):
        assert torch.equal(a, b)


def test_there_and_back():
    s = coo("cpu").coalesce()
    there = s.cuda()
    assert there.is_cuda and there.is_coalesced()
    assert torch.equal(there.cpu().to_dense(), s.to_dense())
    assert there.indices().is_cuda and there.values().is_cuda
    address = there.values().data_ptr()
    there.values().mul_(2)
    assert there.values().data_ptr() == address
    assert torch.equal(there.cpu().to_dense(), s.to_dense() * 2)


def test_sparse_gradients_of_an_embedding():
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 4, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        ids = torch.tensor([1, 3, 3, 7], device=device)
        for _ in range(3):
            optimizer.zero_grad()
            table(ids).square().sum().backward()
            assert table.weight.grad.is_sparse
            optimizer.step()
        results.append(table.weight.detach().cpu())
    assert torch.allclose(*results, atol=1e-6)


def test_a_gradient_through_a_product():
    results = []
    for device in ("cpu", "cuda"):
        leaf = torch.ones(4, 5, device=device, requires_grad=True)
        torch.sparse.mm(coo(device), leaf).square().sum().backward()
        results.append(leaf.grad.cpu())
    assert torch.allclose(*results)
