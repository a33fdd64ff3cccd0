# SPDX-License-Identifier: Apache-2.0
"""Training with parameters, gradients and optimizer state 2x the GPU.

Losses and final parameters equal the CPU's with the same arguments, bit for
bit, and no parameter ever changes its address.
"""

import functools

import pytest

from tests.system.e2e import running

# Parameters, gradients and two optimizer states: four times the parameters.
_SMALL = ("--hidden", 128, "--heads", 4, "--layers", 8, "--words", 1000,
          "--batch", 2, "--steps", 3)  # 6.4 MiB of parameters, 26 MiB in all
_CAPACITY = 12


@functools.cache
def _on_the_cpu(*arguments):
    return running.last_json(running.python(*arguments, "cpu"))


def _both(arguments, memory, conf, foreach, mode="eager", options=()):
    arguments = [running.program("training.py"), "--foreach", foreach,
                 *arguments, "--device"]
    ours = running.last_json(running.on_device(
        f"{memory}MiB", *arguments, "cuda", conf=conf, mode=mode,
        options=options))
    return ours, _on_the_cpu(*arguments)


def _workspaces(arguments, foreach, options):
    """MiB of the device that the libraries keep in this training, whatever they
    are; where there is room."""
    found = running.last_json(running.on_device(
        "512MiB", running.program("training.py"), "--foreach", foreach,
        *arguments, "--steps", 1, "--device", "cuda", options=options))
    return found["workspaces"] >> 20


def _same(ours, cpu, capacity, factor, kept=0):
    assert ours["total_bytes"] >= factor * capacity
    assert ours["violations"] == []
    assert ours["moved"] == []
    running.clean_device(ours["counters"])
    if running.SIMULATED:
        assert ours["losses"] == cpu["losses"]
        assert ours["sums"] == cpu["sums"]
        assert ours["counters"]["peak_used"] <= capacity + kept
    else:
        losses = [[float.fromhex(loss) for loss in run["losses"]]
                  for run in (ours, cpu)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-2, abs=1e-3)
    assert ours["report"]["handles"]["restored_before_use"] > 0
    # What does not fit has left, and come back for its next use.
    beyond = ours["total_bytes"] - capacity
    assert ours["report"]["tiers"]["bytes_evicted"] > beyond
    assert ours["report"]["tiers"]["bytes_restored"] > beyond


@pytest.mark.parametrize("mode", [
    "async", pytest.param("eager", marks=pytest.mark.long)])
def test_small_transformer(mode):
    ours, cpu = _both(_SMALL, _CAPACITY, "host_budget:32MiB", "off", mode)
    _same(ours, cpu, _CAPACITY << 20, 2)


def test_small_transformer_through_the_disk():
    ours, cpu = _both(_SMALL, _CAPACITY, "host_budget:8MiB", "off")
    _same(ours, cpu, _CAPACITY << 20, 2)
    assert sum(row["from_disk"] for row in ours["report"]["layers"]) > 0


def test_small_transformer_through_the_disk_alone():
    # The second step already reads back what the first sent to the disk:
    # parameters, gradients and optimizer state. More only takes longer.
    ours, cpu = _both(_SMALL, _CAPACITY, "host_budget:0", "off")
    _same(ours, cpu, _CAPACITY << 20, 2)
    assert sum(row["from_disk"] for row in ours["report"]["layers"]) > 0
    assert ours["report"]["tiers"]["host_reserved_peak"] == 0


# The libraries of the simulated card without a name keep nothing.
@pytest.mark.parametrize("card", ["", "h200"] if running.SIMULATED else [""])
def test_default_adamw(card):
    """Its _foreach_ operators, each over more than the device, in slices.

    One element's operands lie in 10 MiB, and the loss in 2 MiB more: with a
    workspace beside them 12 MiB are too few.
    """
    options = ("--card", card) if card else ()
    kept = _workspaces(_SMALL, "default", options)
    assert kept > 0 or running.SIMULATED and not card
    ours, cpu = _both(_SMALL, _CAPACITY + kept, "host_budget:32MiB", "default",
                      options=options)
    assert ours["workspaces"] >> 20 == kept
    _same(ours, cpu, _CAPACITY << 20, 2, kept << 20)
    # The default on CUDA is lists, and not on the CPU.
    assert ours["lists"] > 0 and cpu["lists"] == 0
    assert ours["largest_list"] > _CAPACITY << 20


@pytest.mark.long
def test_transformer_of_the_size_of_minilm():
    capacity = 168  # 340 MiB of parameters, gradients and optimizer state
    ours, cpu = _both((), capacity, "host_budget:1GiB", "off")
    _same(ours, cpu, capacity << 20, 2)
