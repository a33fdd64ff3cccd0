# SPDX-License-Identifier: Apache-2.0
"""memory_management on a GPU: a model larger than the card, moves by hand and
by the monitor; equal to the CPU everywhere."""

import copy
import os
import pickle
import threading

from stratalloc import simulate

simulate.load("64MiB")
os.environ["STRATALLOC_CONF"] = "host_budget:256MiB,disk_budget:512MiB"

import hypothesis  # noqa: E402
import hypothesis.strategies as st  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from card_models import (  # noqa: E402,F401
    MIB, WEIGHT, layers, nothing_left, opened, resident)
import stratalloc  # noqa: E402
from managed_models import WAIT, managed_fixture  # noqa: E402
from stratalloc.compat import memory_management as mm  # noqa: E402


def _moved():
    tiers = stratalloc.stats()["tiers"]
    return {key: tiers[key] for key in (
        "bytes_evicted", "bytes_restored", "bytes_to_disk", "bytes_from_disk")}


def test_a_model_of_160_mib_on_a_card_of_64(capsys):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048), nn.ReLU(),
        nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048),
        nn.Linear(2048, 4096), nn.Linear(4096, 10))
    size = sum(one.numel() * 4 for one in model.parameters())
    assert size > 160 * MIB
    batch = torch.randn(32, 2048)
    with torch.no_grad():
        expected = model(batch)
    before = _moved()
    threads = threading.enumerate()

    manager = mm.auto_manage_model(model)
    assert len(threading.enumerate()) == len(threads) + 1
    assert manager.get_memory_summary()["system"]["host"] == size
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.cuda.reset_peak_memory_stats()
    model = model.to(device)
    # Each layer left as it arrived: no two of the large ones were there.
    assert torch.cuda.max_memory_allocated() < 48 * MIB
    where = manager.get_memory_summary()["system"]
    assert where["device"] < MIB < 160 * MIB < where["host"] + where["disk"]
    with torch.no_grad():
        output = model(batch.to(device))
    assert torch.equal(output.cpu(), expected)
    summary = manager.get_memory_summary()
    manager.cleanup()

    assert threading.enumerate() == threads
    assert summary["system"]["total_offloads"] >= 6
    moved = {key: value - before[key] for key, value in _moved().items()}
    assert moved["bytes_evicted"] > size - MIB
    assert moved["bytes_restored"] > size - MIB
    with capsys.disabled():
        print(f"\n{size / MIB:.0f} MiB on 64 MiB: " + ", ".join(
            f"{key} {value / MIB:.1f} MiB" for key, value in moved.items())
            + f"; threads {len(threads)} before, "
              f"{len(threading.enumerate())} after")
    with torch.no_grad():  # it runs without a manager, too
        assert torch.equal(model(batch.to(device)).cpu(), expected)


def test_by_hand_bits_come_back_and_biases_stay(managed):
    model = layers(2).cuda()
    plain = copy.deepcopy(model).cpu()
    address = model[0].weight.data_ptr()
    manager = managed(model, eager_offload_on_wrap=False)
    # Its address was asked for: such memory stays until others were.
    assert model[1].get_memory_info()["is_offloaded"] is False
    moved = model[1].offload_all()
    assert moved >= WEIGHT and 1 not in resident(model)
    info = model[1].get_memory_info()
    assert (info["offloaded_parameters"], info["total_parameters"]) == (1, 2)
    assert info["device"] == 4096 and info["host"] == WEIGHT
    assert info["module_id"] == "1" and info["offloads"] == 1
    assert model[1].load_all() >= WEIGHT and resident(model) == [0, 1]
    manager.offload_all()
    assert torch.equal(model[1].weight.cpu(), plain[1].weight)
    assert model[0].weight.data_ptr() == address
    batch = torch.randn(3, 1024)
    assert torch.equal(model(batch.cuda()).cpu(), plain(batch))


def test_a_small_layers_bias_stays_beside_its_matrix(managed):
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    plain = copy.deepcopy(model)
    for device, arrives in (("cpu", "cuda"), ("cuda", "cuda")):
        manager = managed(model.to(device), [nn.Linear, nn.LayerNorm])
        model.to(arrives)
        info = model[0].get_memory_info()
        assert (info["device"], info["host"]) == (64 * 4, 64 * 64 * 4)
        assert model[1].get_memory_info()["offloaded_parameters"] == 0
        assert all(torch.equal(a.cpu(), b) for a, b in zip(
            model.parameters(), plain.parameters(), strict=True))
        manager.cleanup()


def test_one_dimension_leaves_if_it_is_asked(managed):
    model = layers(1).cuda()
    managed(model, offload_1d_parameters=True)
    info = model[0].get_memory_info()
    assert info["offloaded_parameters"] == 2 and info["device"] == 0


def test_one_dimension_leaves_with_what_shares_its_memory(managed):
    model = layers(1)
    flat = torch.zeros(1024 * 1025, device="cuda")
    model.cuda()
    with torch.no_grad():  # as an RNN's weights are laid out for cuDNN
        flat[:1 << 20] = model[0].weight.flatten()
        flat[1 << 20:] = model[0].bias
        model[0].weight.data = flat[:1 << 20].view(1024, 1024)
        model[0].bias.data = flat[1 << 20:]
    plain = copy.deepcopy(model).cpu()
    del flat
    managed(model)
    info = model[0].get_memory_info()
    assert info["offloaded_parameters"] == 2 and info["device"] == 0
    batch = torch.randn(3, 1024)
    assert torch.equal(model(batch.cuda()).cpu(), plain(batch))


def test_copies_are_plain_and_on_their_device(managed):
    model = layers(1).cuda()
    managed(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is nn.Linear and other[0].weight.is_cuda
        assert torch.equal(other[0].weight, model[0].weight)
    assert isinstance(model[0], nn.Linear)
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


def test_the_coldest_leave_until_the_reload_threshold(managed):
    model = layers(6).cuda()
    manager = managed(model, eager_offload_on_wrap=False,
                      offload_batch_size=2)
    batch = torch.ones(1, 1024, device="cuda")
    for i in (3, 0, 5, 1, 4, 2):
        model[i](batch)
    manager.load_all()
    config = manager.config
    assert manager.check_memory() == 0 and len(resident(model)) == 6
    used = torch.cuda.memory_allocated()
    usage = manager.get_memory_summary()["gpu"]
    assert (usage["used"], usage["total"]) == (used, 64 * MIB)
    assert usage["usage_ratio"] == used / (64 * MIB)
    # Two of a batch, though the threshold asks for more.
    config.gpu_offload_threshold, config.gpu_reload_threshold = .2, .05
    assert manager.check_memory() >= 2 * WEIGHT
    assert resident(model) == [1, 2, 4, 5]
    # Only as many as the reload threshold asks for.
    config.offload_batch_size = 6
    config.gpu_reload_threshold = (
        torch.cuda.memory_allocated() - MIB) / (64 * MIB)
    manager.check_memory()
    assert resident(model) == [1, 2, 4]
    # Above the emergency threshold there is no batch.
    config.offload_batch_size, config.gpu_reload_threshold = 1, .01
    config.gpu_offload_threshold = config.gpu_emergency_threshold = .1
    manager.check_memory()
    assert resident(model) == []
    assert manager.get_memory_summary()["system"]["total_offloads"] == 6


def test_what_ran_lately_stays_if_it_is_asked(managed):
    model = layers(2).cuda()
    manager = managed(model, eager_offload_on_wrap=False,
                      time_since_forward_threshold=1e6,
                      gpu_offload_threshold=.01, gpu_emergency_threshold=1)
    model[0](torch.ones(1, 1024, device="cuda"))
    manager.load_all()
    manager.check_memory()
    assert resident(model) == [0]


def test_a_cap_is_what_the_ratio_is_of(managed):
    model = layers(2).cuda()
    manager = managed(model, eager_offload_on_wrap=False, vram_cap_gb=8 / 1024,
                      gpu_emergency_threshold=1)
    assert manager.get_memory_summary()["gpu"]["total"] == 8 * MIB
    manager.load_all()
    manager.check_memory()
    assert len(resident(model)) == 1


def test_the_thread_evicts_what_nobody_uses(managed):
    model, left = layers(3).cuda(), threading.Event()
    manager = managed(model, eager_offload_on_wrap=False,
                      gpu_offload_threshold=.01, gpu_emergency_threshold=1,
                      gpu_reload_threshold=.001, memory_check_interval=.001)
    manager.load_all()
    count_out = manager.count_out
    manager.count_out = lambda *told: (count_out(*told), left.set())
    assert len(resident(model)) == 3
    manager.start()
    assert left.wait(WAIT)
    manager.cleanup()
    assert len(resident(model)) < 3
    del manager.count_out


def test_the_thread_leaves_a_training_step_right(managed):
    model = layers(4).cuda()
    plain = copy.deepcopy(model).cpu()
    manager = managed(model, gpu_offload_threshold=.01,
                      gpu_reload_threshold=.001, gpu_emergency_threshold=.02,
                      memory_check_interval=.001)
    manager.start()
    for one, device in ((model, "cuda"), (plain, "cpu")):
        optimizer = torch.optim.AdamW(one.parameters(), lr=.01)
        torch.manual_seed(5)
        for _ in range(3):
            optimizer.zero_grad()
            batch = torch.randn(4, 1024).to(device)
            one(batch).square().mean().backward()
            optimizer.step()
    manager.cleanup()
    for mine, theirs in zip(model.parameters(), plain.parameters(),
                            strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    assert manager.get_memory_summary()["system"]["total_offloads"] == 0 or (
        manager._offloads > 4)


def test_managers_obey_their_own_configs(managed):
    model = layers(4).cuda()
    front, back = nn.ModuleList(model[:2]), nn.ModuleList(model[2:])
    stay = managed(front, eager_offload_on_wrap=False,
                   gpu_offload_threshold=.9)
    leave = managed(back, eager_offload_on_wrap=False,
                    gpu_offload_threshold=.01, gpu_emergency_threshold=.01)
    stay.load_all()
    leave.load_all()
    for manager in (stay, leave):
        manager.check_memory()
    assert resident(model) == [0, 1]
    stay.wrap_model(model)  # takes the others over
    assert leave.get_memory_summary()["system"]["managed_modules"] == 0
    stay.load_all()
    leave.check_memory()
    assert resident(model) == [0, 1, 2, 3]
    stay.offload_all()
    assert resident(model) == []


_STEPS = {
    "offload": lambda manager, layer: layer.offload_all(),
    "load": lambda manager, layer: layer.load_all(),
    "all out": lambda manager, layer: manager.offload_all(),
    "look": lambda manager, layer: manager.check_memory(),
    "to the CPU": lambda manager, layer: layer.cpu(),
    "to the GPU": lambda manager, layer: layer.cuda(),
    "double": lambda manager, layer: layer.double().float(),
    "full": lambda manager, layer: setattr(
        manager.config, "gpu_offload_threshold", .01),
    "empty": lambda manager, layer: setattr(
        manager.config, "gpu_offload_threshold", .9),
    "no host": lambda manager, layer: setattr(
        manager.config, "enable_cpu_offload",
        not manager.config.enable_cpu_offload),
    "flat": lambda manager, layer: setattr(
        manager.config, "offload_1d_parameters",
        not manager.config.offload_1d_parameters),
    "start": lambda manager, layer: manager.start(),
    "wrap": lambda manager, layer: manager.wrap_module(layer),
}


@hypothesis.settings(max_examples=15, deadline=None, suppress_health_check=[
    hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.lists(st.tuples(st.sampled_from(sorted(_STEPS)),
                                     st.integers(0, 2)), max_size=10))
def test_whatever_is_done_the_numbers_are_the_same(steps):
    model = layers(3)
    plain = copy.deepcopy(model)
    batch = torch.randn(2, 1024)
    manager = mm.MemoryManager(mm.MemoryConfig(memory_check_interval=.001))
    manager.wrap_model(model)
    try:
        for name, which in steps:
            _STEPS[name](manager, model[which])
            device = model[which].weight.device
            with torch.no_grad():
                assert torch.equal(model[which](batch.to(device)).cpu(),
                                   plain[which](batch))
    finally:
        manager.cleanup()
    for mine, theirs in zip(model.parameters(), plain.parameters(),
                            strict=True):
        assert torch.equal(mine.cpu(), theirs)
