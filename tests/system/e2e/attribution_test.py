# SPDX-License-Identifier: Apache-2.0
"""At the peak nearly every byte has a module and a category."""

import pytest

from tests.system.e2e import running

LEAST = 0.99


# Of fourteen: what is recomputed, cast, chosen by data, and sharded.
_FEW = ("checkpointed", "half precision", "experts", "fully_shard")


@pytest.mark.parametrize("names, count", [
    (_FEW, len(_FEW)), pytest.param((), 14, marks=pytest.mark.long, id="all")])
def test_at_the_peak(names, count, capsys):
    cases = running.last_json(running.on_device(
        "256MiB", running.program("attribution.py"), *names,
        options=("--devices", "2") if running.SIMULATED else ()))
    with capsys.disabled():
        print("\nof the bytes at the peak    module   category")
        for name, case in cases.items():
            print(f"{name:24} {case['module']:9.2%}  {case['category']:9.2%}"
                  f"  of {case['peak']}")
    assert len(cases) == count
    # What a loop makes outside of any scope: labels, a scaler's scale.
    low = {name: case for name, case in cases.items()
           if case["attributed"] < LEAST or case["nodes"]}
    assert not low, low
