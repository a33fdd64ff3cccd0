# SPDX-License-Identifier: Apache-2.0
"""memory_management on a GPU: a model larger than the card, moves by hand and
by the monitor, several managers, threads; equal to the CPU everywhere."""

import copy
import gc
import os
import pickle
import threading

from stratalloc import simulate

simulate.load("64MiB")
os.environ["STRATALLOC_CONF"] = "host_budget:256MiB,disk_budget:512MiB"

import hypothesis  # noqa: E402
import hypothesis.strategies as st  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from managed_models import (  # noqa: E402
    WAIT, calls_beside_moves, left_behind, managed_fixture)
from stratalloc._tiering import rules as _tier_rules  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402
from stratalloc.compat import memory_management as mm  # noqa: E402
from stratalloc.compat.memory_management.monitor import Usage  # noqa: E402
from stratalloc.telemetry import model as events  # noqa: E402

_MIB = 1 << 20
_WEIGHT = 4 * _MIB  # of a layer below: two handles


@pytest.fixture(scope="module", autouse=True)
def opened():
    """The import enabled us; what a first use opens is open."""
    assert stratalloc.is_enabled()
    model = _layers(2, device="cuda")
    model(torch.ones(1, 1024, device="cuda"))
    stratalloc.evict()
    stratalloc.evict(model, to="disk")


@pytest.fixture(autouse=True)
def nothing_left(opened):
    # Layers begin at a handle where nothing else is: each leaves alone.
    gc.collect()
    torch.cuda.empty_cache()
    before = left_behind()
    yield
    if left_behind() != before:
        gc.collect()
    assert left_behind() == before


def _layers(count, width=1024, device=None):
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(1024, width) for _ in range(count)]
                         ).to(device)


def _resident(model):
    """Which of its layers have their weight on the device."""
    return [i for i, layer in enumerate(model)
            if _tiers.residency(layer.weight)["device"] == _WEIGHT]


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
    assert size > 160 * _MIB
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
    assert torch.cuda.max_memory_allocated() < 48 * _MIB
    where = manager.get_memory_summary()["system"]
    assert where["device"] < _MIB < 160 * _MIB < where["host"] + where["disk"]
    with torch.no_grad():
        output = model(batch.to(device))
    assert torch.equal(output.cpu(), expected)
    summary = manager.get_memory_summary()
    manager.cleanup()

    assert threading.enumerate() == threads
    assert summary["system"]["total_offloads"] >= 6
    moved = {key: value - before[key] for key, value in _moved().items()}
    assert moved["bytes_evicted"] > size - _MIB
    assert moved["bytes_restored"] > size - _MIB
    with capsys.disabled():
        print(f"\n{size / _MIB:.0f} MiB on 64 MiB: " + ", ".join(
            f"{key} {value / _MIB:.1f} MiB" for key, value in moved.items())
            + f"; threads {len(threads)} before, "
              f"{len(threading.enumerate())} after")
    with torch.no_grad():  # it runs without a manager, too
        assert torch.equal(model(batch.to(device)).cpu(), expected)


def test_by_hand_bits_come_back_and_biases_stay(managed):
    model = _layers(2).cuda()
    plain = copy.deepcopy(model).cpu()
    address = model[0].weight.data_ptr()
    manager = managed(model, eager_offload_on_wrap=False)
    # Its address was asked for: such memory stays until others were.
    assert model[1].get_memory_info()["is_offloaded"] is False
    moved = model[1].offload_all()
    assert moved >= _WEIGHT and 1 not in _resident(model)
    info = model[1].get_memory_info()
    assert (info["offloaded_parameters"], info["total_parameters"]) == (1, 2)
    assert info["device"] == 4096 and info["host"] == _WEIGHT
    assert info["module_id"] == "1" and info["offloads"] == 1
    assert model[1].load_all() >= _WEIGHT and _resident(model) == [0, 1]
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
    model = _layers(1).cuda()
    managed(model, offload_1d_parameters=True)
    info = model[0].get_memory_info()
    assert info["offloaded_parameters"] == 2 and info["device"] == 0


def test_one_dimension_leaves_with_what_shares_its_memory(managed):
    model = _layers(1)
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
    model = _layers(1).cuda()
    managed(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is nn.Linear and other[0].weight.is_cuda
        assert torch.equal(other[0].weight, model[0].weight)
    assert isinstance(model[0], nn.Linear)
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


def test_the_coldest_leave_until_the_reload_threshold(managed):
    model = _layers(6).cuda()
    manager = managed(model, eager_offload_on_wrap=False,
                      offload_batch_size=2)
    batch = torch.ones(1, 1024, device="cuda")
    for i in (3, 0, 5, 1, 4, 2):
        model[i](batch)
    manager.load_all()
    config = manager.config
    assert manager.check_memory() == 0 and len(_resident(model)) == 6
    used = torch.cuda.memory_allocated()
    usage = manager.get_memory_summary()["gpu"]
    assert (usage["used"], usage["total"]) == (used, 64 * _MIB)
    assert usage["usage_ratio"] == used / (64 * _MIB)
    # Two of a batch, though the threshold asks for more.
    config.gpu_offload_threshold, config.gpu_reload_threshold = .2, .05
    assert manager.check_memory() >= 2 * _WEIGHT
    assert _resident(model) == [1, 2, 4, 5]
    # Only as many as the reload threshold asks for.
    config.offload_batch_size = 6
    config.gpu_reload_threshold = (
        torch.cuda.memory_allocated() - _MIB) / (64 * _MIB)
    manager.check_memory()
    assert _resident(model) == [1, 2, 4]
    # Above the emergency threshold there is no batch.
    config.offload_batch_size, config.gpu_reload_threshold = 1, .01
    config.gpu_offload_threshold = config.gpu_emergency_threshold = .1
    manager.check_memory()
    assert _resident(model) == []
    assert manager.get_memory_summary()["system"]["total_offloads"] == 6


def test_what_ran_lately_stays_if_it_is_asked(managed):
    model = _layers(2).cuda()
    manager = managed(model, eager_offload_on_wrap=False,
                      time_since_forward_threshold=1e6,
                      gpu_offload_threshold=.01, gpu_emergency_threshold=1)
    model[0](torch.ones(1, 1024, device="cuda"))
    manager.load_all()
    manager.check_memory()
    assert _resident(model) == [0]


def test_a_cap_is_what_the_ratio_is_of(managed):
    model = _layers(2).cuda()
    manager = managed(model, eager_offload_on_wrap=False, vram_cap_gb=8 / 1024,
                      gpu_emergency_threshold=1)
    assert manager.get_memory_summary()["gpu"]["total"] == 8 * _MIB
    manager.load_all()
    manager.check_memory()
    assert len(_resident(model)) == 1


def test_the_thread_evicts_what_nobody_uses(managed):
    model, left = _layers(3).cuda(), threading.Event()
    manager = managed(model, eager_offload_on_wrap=False,
                      gpu_offload_threshold=.01, gpu_emergency_threshold=1,
                      gpu_reload_threshold=.001, memory_check_interval=.001)
    manager.load_all()
    count_out = manager.count_out
    manager.count_out = lambda *told: (count_out(*told), left.set())
    assert len(_resident(model)) == 3
    manager.start()
    assert left.wait(WAIT)
    manager.cleanup()
    assert len(_resident(model)) < 3
    del manager.count_out


def test_the_thread_leaves_a_training_step_right(managed):
    model = _layers(4).cuda()
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
    model = _layers(4).cuda()
    front, back = nn.ModuleList(model[:2]), nn.ModuleList(model[2:])
    stay = managed(front, eager_offload_on_wrap=False,
                   gpu_offload_threshold=.9)
    leave = managed(back, eager_offload_on_wrap=False,
                    gpu_offload_threshold=.01, gpu_emergency_threshold=.01)
    stay.load_all()
    leave.load_all()
    for manager in (stay, leave):
        manager.check_memory()
    assert _resident(model) == [0, 1]
    stay.wrap_model(model)  # takes the others over
    assert leave.get_memory_summary()["system"]["managed_modules"] == 0
    stay.load_all()
    leave.check_memory()
    assert _resident(model) == [0, 1, 2, 3]
    stay.offload_all()
    assert _resident(model) == []


def test_to_the_disk_alone(managed):
    model = _layers(2).cuda()
    plain = copy.deepcopy(model).cpu()
    manager = managed(model, enable_cpu_offload=False)
    where = manager.get_memory_summary()["system"]
    assert where["disk"] == 2 * _WEIGHT and where["host"] == 0
    assert manager.get_memory_summary()["disk"]["used"] == 2 * _WEIGHT
    for mine, theirs in zip(model.parameters(), plain.parameters(),
                            strict=True):
        assert torch.equal(mine.cpu(), theirs)


def test_a_full_host_sends_on_to_the_disk(managed):
    model = _layers(3).cuda()
    plain = copy.deepcopy(model).cpu()
    manager = managed(model)
    assert manager.get_memory_summary()["system"]["host"] == 3 * _WEIGHT
    manager.monitor.cpu = lambda: Usage(96 << 20, 100 << 20)
    assert manager.check_memory() >= _WEIGHT
    where = manager.get_memory_summary()["system"]
    # Below .90 again after 6 MiB: of handles, so two layers.
    assert (where["host"], where["disk"]) == (_WEIGHT, 2 * _WEIGHT)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(
        model.parameters(), plain.parameters(), strict=True))
    manager.config.enable_disk_offload = False
    manager.offload_all()
    manager.check_memory()
    where = manager.get_memory_summary()["system"]
    assert (where["host"], where["disk"]) == (3 * _WEIGHT, 0)


def test_its_part_of_the_disk_is_bounded(managed):
    model = _layers(6).cuda()
    manager = managed(model, enable_cpu_offload=False,
                      eager_offload_on_wrap=False,
                      max_disk_usage_gb=2 * _WEIGHT / (1 << 30))
    for layer in model:
        layer.offload_all()
    assert manager.get_memory_summary()["disk"]["usage_ratio"] == 1
    assert len(_resident(model)) == 4
    manager.config.max_disk_usage_gb = 50.0
    manager.offload_all()
    assert _resident(model) == []


def test_new_memory_has_the_rules_too(managed):
    model = _layers(1).cuda()
    managed(model, enable_cpu_offload=False, eager_offload_on_wrap=False)
    layer = model[0]

    def assign():
        layer.load_state_dict({name: one.clone() for name, one in
                               layer.state_dict().items()}, assign=True)

    def another():
        layer.weight = nn.Parameter(torch.ones(1024, 1024, device="cuda"))

    def data():
        layer.weight.data = torch.ones(1024, 1024, device="cuda")

    for change in (assign, another, data):
        layer.load_all()
        change()
        layer.offload_all()
        info = layer.get_memory_info()
        assert (info["host"], info["disk"]) == (0, _WEIGHT), change.__name__
        assert info["device"] == 4096
        assert _tier_rules.rule_of(layer.bias).stay


def test_a_tied_tensor_keeps_the_rule_of_who_is_left(managed):
    words = nn.Embedding(1024, 1024, device="cuda")
    head = nn.Linear(1024, 1024, bias=False, device="cuda")
    head.weight = words.weight
    first = managed(words, [nn.Embedding])
    second = managed(head, enable_cpu_offload=False)
    first.cleanup()
    assert not _tier_rules.rule_of(head.weight).host
    first = managed(words, [nn.Embedding])
    first.cleanup()  # it had the last word
    assert not _tier_rules.rule_of(head.weight).host
    second.cleanup()
    assert _tier_rules.rule_of(head.weight) is None


def test_a_manager_that_is_gone_leaves_no_rule_of_the_tiers(managed):
    model = _layers(1).cuda()
    manager = mm.MemoryManager(mm.MemoryConfig(enable_cpu_offload=False))
    manager.wrap_model(model)
    address = model[0].bias.data_ptr()
    del manager
    gc.collect()
    assert _tier_rules.rule_of(model[0].weight) is None
    assert _tier_rules.rule_of(model[0].bias).stay
    assert model[0].bias.data_ptr() == address
    stratalloc.restore(model)
    stratalloc.evict(model)
    assert _tiers.residency(model[0].weight)["host"] == _WEIGHT
    _tier_rules.clear(model)


def test_a_look_obeys_new_options_and_moves_no_address(managed):
    model = _layers(3).cuda()
    manager = managed(model, eager_offload_on_wrap=False)
    addresses = [layer.bias.data_ptr() for layer in model]
    config = manager.config
    config.enable_cpu_offload = False
    config.offload_1d_parameters = True
    config.max_disk_usage_gb = 2 * _WEIGHT / (1 << 30)
    config.gpu_offload_threshold = config.gpu_reload_threshold = 1e-6
    looks = threading.Thread(target=manager.check_memory)
    looks.start()
    looks.join()
    where = manager.get_memory_summary()["system"]
    assert (where["host"], where["disk"]) == (0, 2 * _WEIGHT)
    assert [layer.bias.data_ptr() for layer in model] == addresses
    config.enable_cpu_offload = True
    looks = threading.Thread(target=manager.mind_disk)
    looks.start()
    looks.join()
    assert manager._disk_is_full
    assert [layer.bias.data_ptr() for layer in model] == addresses
    manager.offload_all()  # on a thread of the program's they may
    assert manager.get_memory_summary()["system"]["device"] == 0


def test_rules_are_no_obstacle_to_swapped_tensors(managed):
    model = _layers(1).cuda()
    managed(model)
    state = {name: one + 1 for name, one in model.state_dict().items()}
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.load_state_dict(state)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert _tier_rules.rule_of(model[0].bias).stay
    model[0].offload_all()
    assert model[0].get_memory_info()["offloaded_parameters"] == 1
    assert all(torch.equal(one, state[name])
               for name, one in model.state_dict().items())


def test_moves_are_in_a_recording(managed):
    model = _layers(2).cuda()
    managed(model, eager_offload_on_wrap=False)
    model[1](torch.ones(1, 1024, device="cuda"))
    with stratalloc.trace() as trace:
        out = model[1].offload_all()
        back = model[1].load_all()
    run = trace.run()
    moves = run.events[run.events["kind"] == events.Kind.MOVE]
    for direction, size in ((events.move(0, 1), out),
                            (events.move(1, 0), back)):
        found = moves[moves["category"] == direction]
        assert found["bytes"].sum() == size >= _WEIGHT
        assert (found["aux"] > 0).all()


def test_threads_run_while_another_offloads_and_loads(managed):
    model = _layers(4)
    plain = copy.deepcopy(model)
    manager = managed(model)
    model.cuda()
    manager.start()
    calls_beside_moves(manager, threads=3, calls=12, size=(2, 1024),
                       same=lambda batch: torch.equal(
                           model(batch.cuda()).cpu(), plain(batch)))


def test_an_exception_in_forward_leaves_nothing(managed):
    model = _layers(1)
    manager = managed(model)
    model.cuda()
    with pytest.raises(RuntimeError, match="shape"):
        model(torch.ones(1, 3, device="cuda"))
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks
    assert manager.offload_all() >= 0 and _resident(model) == []


def test_a_manager_that_nobody_has_ends_with_its_thread():
    model = _layers(1).cuda()
    manager = mm.auto_manage_model(model)
    assert "stratalloc-memory-monitor" in [
        one.name for one in threading.enumerate()]
    del manager
    gc.collect()
    assert type(model[0]) is nn.Linear


def test_after_a_forward_pass_if_it_is_asked(managed):
    model = _layers(2).cuda()
    managed(model, eager_offload_on_wrap=False, gpu_offload_threshold=.01,
            aggressive_post_forward_offload=True)
    model[0](torch.ones(1, 1024, device="cuda"))
    torch.cuda.synchronize()
    assert 0 not in _resident(model)


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
    model = _layers(3)
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
