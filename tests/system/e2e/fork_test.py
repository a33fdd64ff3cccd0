# SPDX-License-Identifier: Apache-2.0
"""A fork while memory is out: the child is harmless, the parent goes on."""

import pytest

from tests.system.e2e import running


def test_data_loader_with_workers(tmp_path):
    """Workers inherit the model and drop it: its memory and files are the
    parent's."""
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


def drop_all(_):  # a worker has no use for the model that it inherits
    for parameter in model.parameters():
        parameter.data = torch.empty(0)


def epoch():
    total = 0.0
    for batch in DataLoader(Numbers(), batch_size=8, num_workers=2,
                            worker_init_fn=drop_all,
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


# A child that waits for a lock nobody will let go of is killed, and fails.
_IN_A_CHILD = """
import ctypes
import gc
import os
import signal
import traceback

import torch
import stratalloc

MIB = 1 << 20


def in_a_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the child ended with {status}"


def driver_calls():
    # Of the simulated device; a real one does not say.
    count = getattr(ctypes.CDLL(None), "cudasim_calls", lambda _: 0)
    return count(None)
"""


@pytest.mark.parametrize("tier, conf", [
    ("host", "host_budget:64MiB,disk_budget:0"),
    ("disk", "host_budget:0,disk_budget:64MiB"),
])
def test_child_that_drops_tensors(tmp_path, tier, conf):
    """Freeing in the child is a no-op: nothing is asked of the driver, and the
    parent's blocks keep their bytes, the spill file its chunks."""
    path = tmp_path / "script.py"
    path.write_text(_IN_A_CHILD + f"""
from stratalloc._native import core as _core

blocks = [torch.full((MIB,), float(i), device="cuda") for i in range(6)]
here = [torch.full((MIB,), float(i), device="cuda") for i in range(6)]
torch.cuda.synchronize()
stratalloc.evict(blocks)
tiers = stratalloc.report()["tiers"]
assert tiers["{tier}_used"] >= 6 * 4 * MIB, tiers


def drop():
    before = driver_calls()
    blocks.clear()
    here.clear()
    gc.collect()
    # Nor by what gives back what was freed, asked for behind torch's back,
    # which lets nobody in who forked.
    for give_back in (lambda: _core.report(0), torch._C._cuda_emptyCache):
        try:
            give_back()
        except RuntimeError as error:
            assert "forked process; use the 'spawn'" in str(error), error
    assert driver_calls() == before


in_a_child(drop)
assert stratalloc.report()["tiers"]["{tier}_used"] == tiers["{tier}_used"]
for made in (blocks, here):
    assert [block.sum().item() for block in made] == [
        float(i * MIB) for i in range(6)]
print("same")
""")
    done = running.on_device("64MiB", path, conf=conf)
    assert running.must_work(done) == "same\n"


def test_child_of_a_parent_whose_threads_were_in_the_allocator(tmp_path):
    """Whatever lock another thread held when the process forked stays locked in
    the child for ever: a free there asks for none."""
    path = tmp_path / "script.py"
    path.write_text(_IN_A_CHILD + """
import threading

blocks = [torch.full((MIB,), float(i), device="cuda") for i in range(6)]
stop = threading.Event()


def work():
    # The slow way: memory comes from the driver and goes back, under the lock.
    while not stop.is_set():
        torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()


def drop():
    blocks.clear()
    gc.collect()


thread = threading.Thread(target=work)
thread.start()
try:
    for _ in range(30):
        in_a_child(drop)
finally:
    stop.set()
    thread.join()
assert [block.sum().item() for block in blocks] == [
    float(i * MIB) for i in range(6)]
print("same")
""")
    done = running.on_device("128MiB", path)
    assert running.must_work(done) == "same\n"


def test_what_a_child_may_ask_for(tmp_path):
    """Moving and pinning say why not; addresses are addresses, as natively."""
    path = tmp_path / "script.py"
    path.write_text("""
import os
import torch
import stratalloc
from stratalloc._tiering import pin_table as _pin_table, tiers as _tiers

block = torch.full((1 << 20,), 7.0, device="cuda")
pinned = torch.full((1 << 20,), 8.0, device="cuda")
address = block.data_ptr()
stratalloc.pin(pinned)
torch.cuda.synchronize()
_pin_table.lock.acquire()  # as a thread would that does not come along
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
_pin_table.lock.release()
assert os.waitpid(child, 0)[1] == 0
assert stratalloc.report()["pins"][0]["storages"] == 1
assert stratalloc.unpin(pinned) == pinned.nbytes
print("same")
""")
    done = running.on_device("64MiB", path)
    assert running.must_work(done) == "same\n"


def test_optimizer_in_a_child_waits_for_nobody(tmp_path):
    """What a step's hooks ask the accounts for takes their lock, which a
    thread of the parent may hold while it forks."""
    path = tmp_path / "script.py"
    path.write_text(_IN_A_CHILD + """
import threading

from stratalloc._native import _scopes

scope = _scopes.intern("Asked")
stop = threading.Event()


def ask():
    while not stop.is_set():
        _scopes.owned(scope)


def owned_is_nothing():
    assert _scopes.owned(scope) == 0


with stratalloc.scope("Asked"):
    block = torch.ones(MIB, device="cuda")
assert _scopes.owned(scope) == block.nbytes
in_a_child(owned_is_nothing)
threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads:
    thread.start()
try:
    for _ in range(30):
        in_a_child(owned_is_nothing)
finally:
    stop.set()
    for thread in threads:
        thread.join()
print("same")
""")
    done = running.on_device("128MiB", path)
    assert running.must_work(done) == "same\n"
