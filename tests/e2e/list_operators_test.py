# SPDX-License-Identifier: Apache-2.0
"""Ordinary training whose list operators do not fit the device.

The lists of every step (gradients, optimizer state, both with parameters) are
larger than the device, so each operator over them runs in slices. Parameters,
losses and norms equal the CPU's, bit for bit.
"""

import json

import pytest

from tests.e2e import running

_CAPACITY = 24  # MiB; one parameter with its gradient and state takes up to 20
_CONF = "host_budget:512MiB"


def _lines(done):
    return [json.loads(line)
            for line in running.must_work(done).strip().splitlines()
            if line.startswith("{")]


def _equal(cases, mode="eager"):
    """Every case on the device and on the CPU, several in a process."""
    program = running.program("list_operators.py")
    *ours, after = _lines(running.on_device(
        f"{_CAPACITY}MiB", program, "--device", "cuda", *cases, conf=_CONF,
        mode=mode))
    errors = [case for case in ours if "error" in case]
    assert not errors, errors
    assert after["violations"] == []
    running.clean_device(after["counters"])
    cpu = _lines(running.python(program, "--device", "cpu", *cases))
    assert [case["case"] for case in ours] == cases
    if running.SIMULATED:
        assert ours == cpu
        assert after["counters"]["peak_used"] <= _CAPACITY << 20
    assert after["report"]["handles"]["restored_before_use"] > 0


def test_adam():
    _equal(["adamw", "adamw_fused", "amsgrad", "amsgrad_fused"])


def test_sgd_with_momentum():
    _equal(["sgd", "sgd_fused"])


def test_other_optimizers():
    _equal(["adafactor", "nadam", "radam", "adagrad", "adamax", "rmsprop"])


def test_averages_and_clipping():
    _equal(["ema", "clip_norm", "clip_value"])


def test_scaled_gradients():
    _equal(["scaler", "scaler_fused"])


def test_on_a_device_that_runs_behind():
    _equal(["adamw", "scaler_fused"], mode="async")


@pytest.mark.parametrize("framework", ["trainer", "lightning"])
def test_with_the_defaults_of(framework):
    program = running.program("list_frameworks.py")
    ours = running.last_json(running.on_device(
        f"{_CAPACITY}MiB", program, "--device", "cuda", framework, conf=_CONF))
    assert "error" not in ours, ours["error"]
    assert ours.pop("violations") == []
    running.clean_device(ours.pop("counters"))
    assert ours["bytes"] > _CAPACITY << 20
    if framework == "trainer":
        assert ours["fused"] and ours["clipped"] == 1.0
    cpu = running.last_json(
        running.python(program, "--device", "cpu", framework))
    if running.SIMULATED:
        assert ours == cpu


def test_what_still_cannot_fit_and_what_stays_whole():
    """One element too large is an error that says so; an operator around a
    list operator keeps it whole, as a capture does."""
    said = running.last_json(running.on_device(
        f"{_CAPACITY}MiB", running.program("list_limits.py"), conf=_CONF))
    assert "aten::_foreach_add_.List in slices; element 1 of 3" in (
        said["one_element"])
    for part in ("CUDA out of memory", "32.00 MiB", "24.00 MiB", "gpu_limit"):
        assert part in said["one_element"]
    assert said["after"] == [2.0, 1.0, 1.0]
    assert "CUDA out of memory" in said["inside"]
    assert "aten::_foreach_add_.Scalar needs 40.00 MiB" in said["inside"]
    assert "slices" not in said["captured"]
    assert "out of memory" in said["captured"]
    assert said["again"] == "done"
