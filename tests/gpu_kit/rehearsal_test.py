# SPDX-License-Identifier: Apache-2.0
"""On the simulated device nothing differs from it: the steps of a few seconds.
All of them: tests/system/long."""

import pytest

from tests.gpu_kit import rehearsal

_SHORT = ("evict",)
_ALL_SHORT = ("evict", "fatal", "profile", "neighbours", "host")
_OK = {"verdict": "ok"}
_CANNOT = {"verdict": "not here",
           "sentences": ["not on the simulated device: it runs no kernel"]}


@pytest.mark.parametrize("names", [
    pytest.param(_SHORT, id="some"),
    pytest.param(_ALL_SHORT, id="all", marks=pytest.mark.long)])
def test_the_short_steps_differ_in_nothing(tmp_path, names):
    printed, found = rehearsal.run(tmp_path, names, "--quick")
    assert not found, "\n".join([*found, printed])
    for name in names:
        assert f"\n{name:<14} ok " in printed, printed


@pytest.mark.parametrize("code, steps, differences, words", [
    (1, {"a": _OK, "b": _OK}, [], "ended with 1"),
    (0, {"a": _OK}, [], "b: the verdict is none"),
    (0, {"a": _OK, "b": {"verdict": "begun"}}, [], "b: the verdict is begun"),
    (0, {"a": _OK, "b": _OK}, ["b: 38 us here, 2"], "38 us here"),
    (0, {"a": _OK, "b": {"verdict": "differs", "sentences": ["38 us"]}}, [],
     "b: the verdict is differs: 38 us"),
    (0, {"a": _OK, "b": {"verdict": "not here",
                         "sentences": ["accelerate is not installed"]}}, [],
     "b: the verdict is not here: accelerate"),
])
def test_what_is_not_as_it_should_be_is_said(code, steps, differences, words):
    found = rehearsal.complaints(
        code, {"steps": steps, "differences": differences}, ("a", "b"))
    assert len(found) == 1 and words in found[0], found


def test_what_the_simulated_device_cannot_run_is_no_complaint():
    assert not rehearsal.complaints(
        0, {"steps": {"a": _OK, "b": _CANNOT}, "differences": []}, ("a", "b"))
