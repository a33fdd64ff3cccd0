# SPDX-License-Identifier: Apache-2.0
"""After a step evict() leaves nothing but what has a reason to stay."""

import pytest

from tests.system.e2e import running

# The libraries' workspaces, of the size that they have on this card.
_CARD = ("--card", "h200") if running.SIMULATED else ()
_WORKSPACES = "library workspaces"


def _all_left(cases):
    """Nothing named by a case is on the device, nothing unnamed either."""
    stuck = {name: line for name, line in cases.items()
             if line["stuck"] or set(line["stays"]) - {_WORKSPACES}
             or sum(line["stays"].values()) != line["allocated"]}
    assert not stuck, f"{len(stuck)} of {len(cases)}: {stuck}"


@pytest.mark.parametrize("dtype, step", [
    ("bfloat16", 3), *(pytest.param(dtype, 1, marks=pytest.mark.long)
                       for dtype in ("float32", "bfloat16"))])
def test_weights_of_every_size(dtype, step):
    if not running.SIMULATED:
        pytest.skip("3 GiB per tensor are cheap without bytes only")
    cases = running.last_json(running.on_device(
        "card", running.program("stays_sizes.py"), dtype, step,
        conf="host_budget:16GiB", options=(*_CARD, "--numbers", "off")))
    assert len(cases) > 3 * (20 // step) - 3
    _all_left(cases)


@pytest.mark.parametrize("program, least",
                         [("stays_modules.py", 50), ("stays_weights.py", 20)])
def test_weights_of_every_kind(program, least):
    cases = running.last_json(running.on_device(
        "1GiB", running.program(program), conf="host_budget:2GiB",
        options=_CARD))
    assert len(cases) >= least
    if program == "stays_weights.py":
        # Otherwise nothing would tell a workspace from a weight of its size.
        assert all(line["stays"].get(_WORKSPACES) for line in cases.values())
    _all_left(cases)


def test_copies_of_weights():
    _all_left(running.last_json(running.on_device(
        "256MiB", running.program("stays_copies.py"), "look",
        conf="host_budget:256MiB")))


def test_casts_that_exceed_the_card():
    starved, roomy = (running.last_json(running.on_device(
        card, running.program("stays_copies.py"), "starved",
        conf="host_budget:256MiB")) for card in ("16MiB", "512MiB"))
    assert starved == roomy


# A small card, and a large one of which a real run is given as much.
@pytest.mark.parametrize("limit", [
    "", *([",gpu_limit:64MiB"] if running.SIMULATED else [])])
def test_every_reason(limit):
    running.must_work(running.on_device(
        "1GiB" if limit else "64MiB", running.program("stays_reasons.py"),
        conf=f"host_budget:64MiB{limit}"))
