# SPDX-License-Identifier: Apache-2.0
"""A fork while memory is out: the child is harmless, the parent goes on."""

from tests.e2e import running


def test_data_loader_with_workers(tmp_path):
    """Workers inherit the model; they must not touch its memory or files."""
    path = tmp_path / "script.py"
    path.write_text("""
import torch
import stratalloc
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024)
                              for _ in range(8))).to("cuda")
weights = [p.detach().cpu() for p in model.parameters()]


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1024,), float(index))


def epoch():
    total = 0.0
    for batch in DataLoader(Numbers(), batch_size=8, num_workers=2,
                            multiprocessing_context="fork"):
        with torch.no_grad():
            total += model(batch.to("cuda")).sum().item()
    return total


first = epoch()
stratalloc.evict()
assert epoch() == first
for mine, theirs in zip(model.parameters(), weights):
    assert torch.equal(mine.detach().cpu(), theirs)
print("same")
""")
    done = running.on_device(
        "24MiB", path, conf="host_budget:4MiB,disk_budget:64MiB")
    assert running.must_work(done) == "same\n"


def test_child_that_drops_tensors(tmp_path):
    """Freeing in the child is a no-op: the parent's block keeps its bytes."""
    path = tmp_path / "script.py"
    path.write_text("""
import os
import torch
import stratalloc

block = torch.full((1 << 20,), 7.0, device="cuda")
stratalloc.evict()
child = os.fork()
if child == 0:
    del block
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert block.sum().item() == 7 << 20
print("same")
""")
    done = running.on_device("64MiB", path)
    assert running.must_work(done) == "same\n"


def test_what_a_child_may_ask_for(tmp_path):
    """Moving and pinning say why not; addresses are addresses, as natively."""
    path = tmp_path / "script.py"
    path.write_text("""
import os
import torch
import stratalloc
from stratalloc import _pins, _tiers

block = torch.full((1 << 20,), 7.0, device="cuda")
pinned = torch.full((1 << 20,), 8.0, device="cuda")
address = block.data_ptr()
stratalloc.pin(pinned)
torch.cuda.synchronize()
_pins._lock.acquire()  # as a thread would that does not come along
child = os.fork()
if child == 0:
    for verb in (stratalloc.pin, stratalloc.evict, stratalloc.restore,
                 _tiers.residency):
        try:
            verb([block])
        except RuntimeError as error:
            assert "forked process; use the 'spawn'" in str(error), error
        else:
            raise AssertionError(verb)
    # Nothing of it is on a device.
    assert stratalloc.pin([torch.ones(3)]) == 0
    # The parent's pins are not the child's to take back.
    assert stratalloc.unpin(pinned) == 0
    assert block.data_ptr() == address
    interface = block.__cuda_array_interface__
    assert interface["data"][0] == address
    os._exit(0)
_pins._lock.release()
assert os.waitpid(child, 0)[1] == 0
assert stratalloc.report()["pins"][0]["storages"] == 1
assert stratalloc.unpin(pinned) == pinned.nbytes
print("same")
""")
    done = running.on_device("64MiB", path)
    assert running.must_work(done) == "same\n"
