# SPDX-License-Identifier: Apache-2.0
"""Everything that a program starts ends by close(), by `with` and as before."""

import socket
import sys
import types

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc._oom import hook  # noqa: E402

MIB = 1 << 20


def _is_limited(_):
    return bool(stratalloc.report()["limits"])


def _is_served(server):
    try:
        socket.create_connection((server.addr, server.port)).close()
    except OSError:
        return False
    return True


def _counts_steps(found):
    before = found.seen
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()
    return found.seen > before


# name -> (start it, is it in effect, the earlier spelling of its end)
_STARTED = {
    "limit": (lambda: stratalloc.limit(MIB, scope="started"), _is_limited,
              lambda made: made.remove()),
    "serve_metrics": (stratalloc.serve_metrics, _is_served, None),
    "leaks": (stratalloc.leaks, _counts_steps, lambda made: made.stop()),
    "on_oom": (lambda: stratalloc.on_oom(print),
               lambda _: bool(hook._state.callbacks), lambda made: made()),
    "trace": (lambda: stratalloc.trace().start(),
              lambda made: "being recorded" in repr(made), None),
    "telemetry_level": (lambda: stratalloc.telemetry_level("events"),
                        lambda _: stratalloc.telemetry_level() == "events",
                        stratalloc.telemetry_level),
}
_all = pytest.mark.parametrize("name", _STARTED)


@_all
def test_close_ends_what_was_started_and_again_does_nothing(name):
    start, runs, _ = _STARTED[name]
    made = start()
    assert runs(made)
    made.close()
    assert not runs(made)
    made.close()
    assert not runs(made)


@_all
def test_with_ends_what_was_started(name):
    start, runs, _ = _STARTED[name]
    made = start() if name != "trace" else stratalloc.trace()
    with made as entered:
        assert entered is made and runs(made)
    assert not runs(made)


@_all
def test_with_ends_what_was_started_when_the_program_raises(name):
    start, runs, _ = _STARTED[name]
    made = start() if name != "trace" else stratalloc.trace()
    with pytest.raises(KeyError):
        with made:
            raise KeyError
    assert not runs(made)


@pytest.mark.parametrize("name", [name for name, (_, _, earlier)
                                  in _STARTED.items() if earlier])
def test_earlier_spelling_ends_what_was_started(name):
    start, runs, earlier = _STARTED[name]
    made = start()
    assert runs(made)
    earlier(made)
    assert not runs(made)


def test_second_close_keeps_what_was_started_later():
    first = stratalloc.telemetry_level("events")
    first.close()
    with stratalloc.telemetry_level("off"):
        first.close()
        assert stratalloc.telemetry_level() == "off"
    limit = stratalloc.limit(MIB, scope="started")
    limit.close()
    with stratalloc.limit(2 * MIB, scope="started"):
        limit.close()
        assert _is_limited(None)


def test_telemetry_level_returns_the_level_before_as_text():
    with stratalloc.telemetry_level("events") as before:
        assert before == "counters" and isinstance(before, str)
        stratalloc.telemetry_level(before)
        assert type(stratalloc.telemetry_level()) is str


def test_telemetry_level_closed_before_a_later_one_leaves_no_level():
    first = stratalloc.telemetry_level("events")
    second = stratalloc.telemetry_level("full")
    first.close()
    assert stratalloc.telemetry_level() == "full"
    second.close()
    assert stratalloc.telemetry_level() == "counters"


def test_level_set_in_a_with_ends_with_it():
    with stratalloc.telemetry_level("events"):
        stratalloc.telemetry_level("off")
        with stratalloc.telemetry_level("full"):
            pass
        assert stratalloc.telemetry_level() == "off"
    assert stratalloc.telemetry_level() == "counters"


def _limit_now():
    return [row["bytes"] for row in stratalloc.report()["limits"]]


def test_closed_limit_is_not_entered_again():
    limit = stratalloc.limit(MIB, scope="closed")
    limit.close()
    with pytest.raises(RuntimeError, match="closed is closed; call limit"):
        limit.__enter__()


def test_argument_of_a_wrong_type_is_named():
    with pytest.raises(ValueError, match="steps='x' is no int; use 12"):
        stratalloc.leaks(steps="x")
    with pytest.raises(TypeError, match="path must be a str or a path, not in"):
        stratalloc.trace(3)


def test_closed_limit_restores_the_limit_that_it_replaced():
    first = stratalloc.limit(3 * MIB, scope="nested")
    second = stratalloc.limit(2 * MIB, scope="nested")
    third = stratalloc.limit(MIB, scope="nested")
    second.close()  # replaced: in force is the third
    assert _limit_now() == [MIB]
    third.close()
    assert _limit_now() == [3 * MIB]
    first.close()
    assert _limit_now() == []


def test_limit_and_trace_read_as_values_and_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(
        DataFrame=lambda rows, columns: rows))
    with stratalloc.limit(MIB, scope="shown") as limit:
        assert limit.to_dict() == {"scope": "shown", "bytes": MIB, "device": 0}
        assert limit.to_pandas()[1] == {"name": "bytes", "value": MIB}
        assert limit.text() == "shown on device 0: limited to 1 MiB"
    assert limit.text(all=True).endswith(", closed")
    with stratalloc.trace() as trace:
        kept = torch.ones(MIB, device="cuda")
    assert trace.to_dict()["devices"][0]["allocations"] == 1
    names = [row["name"] for row in trace.to_pandas()]
    assert "devices.0.allocated.peak" in names and kept.numel() == MIB
    assert trace.text(depth=0) == str(trace)
    for found in (limit, trace):
        assert found and hash(found) == hash(found)


def test_closed_trace_has_what_was_recorded():
    trace = stratalloc.trace().start()
    with pytest.raises(RuntimeError, match="being recorded already"):
        trace.start()
    kept = torch.ones(MIB, device="cuda")
    trace.close()
    assert len(trace.run().events) > 0 and kept.numel() == MIB
