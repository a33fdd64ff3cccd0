# SPDX-License-Identifier: Apache-2.0
"""Tiers, rules and recordings of memory_management on a GPU, threads, and what
a manager leaves."""

import copy
import gc
import os
import threading

from stratalloc import simulate

simulate.load("64MiB")
os.environ["STRATALLOC_CONF"] = "host_budget:256MiB,disk_budget:512MiB"

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from card_models import (  # noqa: E402,F401
    WEIGHT, layers, nothing_left, opened, resident)
import stratalloc  # noqa: E402
from managed_models import calls_beside_moves, managed_fixture  # noqa: E402
from stratalloc._tiering import rules as _tier_rules  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402
from stratalloc.compat import memory_management as mm  # noqa: E402
from stratalloc.compat.memory_management.monitor import Usage  # noqa: E402
from stratalloc.telemetry import model as events  # noqa: E402


def test_to_the_disk_alone(managed):
    model = layers(2).cuda()
    plain = copy.deepcopy(model).cpu()
    manager = managed(model, enable_cpu_offload=False)
    where = manager.get_memory_summary()["system"]
    assert where["disk"] == 2 * WEIGHT and where["host"] == 0
    assert manager.get_memory_summary()["disk"]["used"] == 2 * WEIGHT
    for mine, theirs in zip(model.parameters(), plain.parameters(),
                            strict=True):
        assert torch.equal(mine.cpu(), theirs)


def test_a_full_host_sends_on_to_the_disk(managed):
    model = layers(3).cuda()
    plain = copy.deepcopy(model).cpu()
    manager = managed(model)
    assert manager.get_memory_summary()["system"]["host"] == 3 * WEIGHT
    manager.monitor.cpu = lambda: Usage(96 << 20, 100 << 20)
    assert manager.check_memory() >= WEIGHT
    where = manager.get_memory_summary()["system"]
    # Below .90 again after 6 MiB: of handles, so two layers.
    assert (where["host"], where["disk"]) == (WEIGHT, 2 * WEIGHT)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(
        model.parameters(), plain.parameters(), strict=True))
    manager.config.enable_disk_offload = False
    manager.offload_all()
    manager.check_memory()
    where = manager.get_memory_summary()["system"]
    assert (where["host"], where["disk"]) == (3 * WEIGHT, 0)


def test_its_part_of_the_disk_is_bounded(managed):
    model = layers(6).cuda()
    manager = managed(model, enable_cpu_offload=False,
                      eager_offload_on_wrap=False,
                      max_disk_usage_gb=2 * WEIGHT / (1 << 30))
    for layer in model:
        layer.offload_all()
    assert manager.get_memory_summary()["disk"]["usage_ratio"] == 1
    assert len(resident(model)) == 4
    manager.config.max_disk_usage_gb = 50.0
    manager.offload_all()
    assert resident(model) == []


def test_new_memory_has_the_rules_too(managed):
    model = layers(1).cuda()
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
        assert (info["host"], info["disk"]) == (0, WEIGHT), change.__name__
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
    model = layers(1).cuda()
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
    assert _tiers.residency(model[0].weight)["host"] == WEIGHT
    _tier_rules.clear(model)


def test_a_look_obeys_new_options_and_moves_no_address(managed):
    model = layers(3).cuda()
    manager = managed(model, eager_offload_on_wrap=False)
    addresses = [layer.bias.data_ptr() for layer in model]
    config = manager.config
    config.enable_cpu_offload = False
    config.offload_1d_parameters = True
    config.max_disk_usage_gb = 2 * WEIGHT / (1 << 30)
    config.gpu_offload_threshold = config.gpu_reload_threshold = 1e-6
    looks = threading.Thread(target=manager.check_memory)
    looks.start()
    looks.join()
    where = manager.get_memory_summary()["system"]
    assert (where["host"], where["disk"]) == (0, 2 * WEIGHT)
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
    model = layers(1).cuda()
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
    model = layers(2).cuda()
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
        assert found["bytes"].sum() == size >= WEIGHT
        assert (found["aux"] > 0).all()


def test_threads_run_while_another_offloads_and_loads(managed):
    model = layers(4)
    plain = copy.deepcopy(model)
    manager = managed(model)
    model.cuda()
    manager.start()
    calls_beside_moves(manager, threads=3, calls=12, size=(2, 1024),
                       same=lambda batch: torch.equal(
                           model(batch.cuda()).cpu(), plain(batch)))


def test_an_exception_in_forward_leaves_nothing(managed):
    model = layers(1)
    manager = managed(model)
    model.cuda()
    with pytest.raises(RuntimeError, match="shape"):
        model(torch.ones(1, 3, device="cuda"))
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks
    assert manager.offload_all() >= 0 and resident(model) == []


def test_a_manager_that_nobody_has_ends_with_its_thread():
    model = layers(1).cuda()
    manager = mm.auto_manage_model(model)
    assert "stratalloc-memory-monitor" in [
        one.name for one in threading.enumerate()]
    del manager
    gc.collect()
    assert type(model[0]) is nn.Linear


def test_after_a_forward_pass_if_it_is_asked(managed):
    model = layers(2).cuda()
    managed(model, eager_offload_on_wrap=False, gpu_offload_threshold=.01,
            aggressive_post_forward_offload=True)
    model[0](torch.ones(1, 1024, device="cuda"))
    torch.cuda.synchronize()
    assert 0 not in resident(model)
