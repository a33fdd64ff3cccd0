# SPDX-License-Identifier: Apache-2.0
"""How a consumer is run under PyTorch's allocator and ours, and compared."""

import os

import pytest

from tests.system.e2e import running

# Tiering or not, a consumer sees the same.
WAYS = (("native", ""), ("ours", "tiering:off"), ("ours", ""))
# Each change: with what the most code runs.
EVERY = [pytest.param((WAYS[0], WAYS[2]), id="tiering"),
         pytest.param(WAYS, id="all", marks=pytest.mark.long)]
_PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "programs")


def program(name):
    return os.path.join(_PROGRAMS, name)


def ask(way, conf, memory, names, without_twin=0, **environment):
    saw = running.last_json(running.python(
        program("consumer.py"), way, memory, *names, STRATALLOC_CONF=conf,
        PYTHONHASHSEED="0", **environment))
    assert saw.pop("enabled") == (way == "ours")
    assert saw.pop("violations") == 0
    assert saw.pop("without_twin") == without_twin
    return saw


def first_difference(native, ours, place=""):
    """Where two results differ first, and how; "" if they are equal."""
    if native == ours:
        return ""
    if isinstance(native, dict) and isinstance(ours, dict):
        pairs = [(key, native.get(key), ours.get(key))
                 for key in {**native, **ours}]
    elif (isinstance(native, list) and isinstance(ours, list)
          and len(native) == len(ours)):
        pairs = [(key, *pair) for key, pair in enumerate(zip(native, ours))]
    else:
        return f"{place}: {str(native)[:500]} and {str(ours)[:500]}"
    for key, *pair in pairs:
        if pair[0] != pair[1]:
            return first_difference(*pair, f"{place}[{key!r}]")
    return f"{place}: a key that is null"


def same_everywhere(ways, *names, memory="256MiB", without_twin=0, cumulative=True,
                    **environment):
    """Runs FILE.FUNCTION... in these WAYS; what all of them returned.

    Results and counts of statistics must be the same under PyTorch's allocator
    and under ours, with tiering and without. `without_twin`: how many kernels
    the simulated device must have refused. Not `cumulative`: only what is
    current is compared of the counts.
    """
    native, *others = [
        ask(way, conf, memory, names, without_twin, **environment)
        for way, conf in ways]
    if not cumulative:
        for saw in (native, *others):
            for name in names:
                saw[name]["counts"] = {
                    key: value for key, value in saw[name]["counts"].items()
                    if key.endswith(".current")}
    for (_, conf), saw in zip(ways[1:], others):
        for name in names:
            differs = first_difference(native[name], saw[name], name)
            assert not differs, f"native and ours ({conf!r}): {differs}"
    return {name.partition(".")[2]: native[name]["result"]
            for name in names}
