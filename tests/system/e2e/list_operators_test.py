# SPDX-License-Identifier: Apache-2.0
"""Ordinary training whose list operators do not fit the device.

The lists of every step (gradients, optimizer state, both with parameters) are
larger than the device, so each operator over them runs in slices. Parameters,
losses and norms equal the CPU's, bit for bit.
"""

import functools
import json

import pytest

from tests.system.e2e import running

_CAPACITY = 24  # MiB; one parameter with its gradient and state takes up to 20
_CONF = "host_budget:512MiB"


def _lines(done):
    return [json.loads(line)
            for line in running.must_work(done).strip().splitlines()
            if line.startswith("{")]


_CASES = (
    "adamw", "adamw_fused", "amsgrad", "amsgrad_fused", "sgd", "sgd_fused",
    "adafactor", "nadam", "radam", "adagrad", "adamax", "rmsprop", "ema",
    "clip_norm", "clip_value", "scaler", "scaler_fused")
# On a device that runs behind what it is asked.
_ASYNC = ("adamw", "scaler_fused")


# The rest of them differs in which list operators it calls.
_QUICK = ("adafactor", "clip_norm")


@functools.cache
def _on_device(case, mode):
    """Its line and the line at the end."""
    ours, after = _lines(running.on_device(
        f"{_CAPACITY}MiB", running.program("list_operators.py"), "--device",
        "cuda", case, conf=_CONF, mode=mode))
    return ours, after


@functools.cache
def _on_the_cpu(case):
    line, = _lines(running.python(
        running.program("list_operators.py"), "--device", "cpu", case))
    return line


def _long_unless_in(chosen, cases):
    return [case if case in chosen
            else pytest.param(case, marks=pytest.mark.long) for case in cases]


def _same(case, mode):
    ours, after = _on_device(case, mode)
    assert "error" not in ours, ours["error"]
    assert after["violations"] == []
    if running.SIMULATED:
        assert ours == _on_the_cpu(case)


@pytest.mark.parametrize("case", _long_unless_in(_QUICK, _CASES))
def test_equals_the_cpu(case):
    _same(case, "eager")


@pytest.mark.parametrize("case", _long_unless_in(("scaler_fused",), _ASYNC))
def test_equals_the_cpu_on_a_device_that_runs_behind(case):
    _same(case, "async")


@pytest.mark.parametrize("case, mode", [
    ("adafactor", "eager"), ("scaler_fused", "async"),
    *(pytest.param(case, "eager", marks=pytest.mark.long)
      for case in _CASES if case != "adafactor"),
    pytest.param("adamw", "async", marks=pytest.mark.long)])
def test_kept_within_the_device(case, mode):
    _, after = _on_device(case, mode)
    running.clean_device(after["counters"])
    if running.SIMULATED:
        assert after["counters"]["peak_used"] <= _CAPACITY << 20
    assert after["report"]["handles"]["restored_before_use"] > 0


@pytest.mark.long
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
    remedy = "No setting helps." if running.SIMULATED else "raise gpu_limit"
    for part in ("CUDA out of memory", "32.00 MiB", "24.00 MiB", remedy):
        assert part in said["one_element"]
    # It was tried before the first slice: no half of a step.
    assert said["after"] == [1.0, 1.0, 1.0]
    assert "CUDA out of memory" in said["inside"]
    assert "aten::_foreach_add_.Scalar needs 40.00 MiB" in said["inside"]
    assert "slices" not in said["captured"]
    assert "out of memory" in said["captured"]
    assert said["again"] == "done"


def test_runs_in_slices_while_another_thread_captures():
    """Its graph keeps none of them."""
    done = running.last_json(running.on_device(
        f"{_CAPACITY}MiB", running.program("list_beside_capture.py"),
        conf=_CONF))
    assert done["said"] == "done"
    assert done["slices"] > 1 and done["elements"] == 10
    assert done["values"] == [2.0] * 10
    assert done["captured"] == [2.0] * 8
