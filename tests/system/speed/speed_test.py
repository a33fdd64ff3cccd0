# SPDX-License-Identifier: Apache-2.0
"""The yardstick measures what it says: its rows, its bounds, its sizes."""

import importlib.util
import json
import os

import pytest

from tests.system.e2e import running
from tests.system.speed import curve
from tests.system.speed import curve_picture
from tests.system.speed import llama
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.speed import waits

_HERE = os.path.dirname(os.path.abspath(__file__))
_KEYS = {"name", "value", "unit", "baseline", "baseline_name", "ratio", "goal",
         "pass", "card", "card_bytes", "capacity", "model_bytes"}


def _measured(*arguments):
    """(exit code, what was printed, the rows by job and figure)."""
    path = os.path.join(os.environ["TEST_TMPDIR"]
                        if "TEST_TMPDIR" in os.environ else "/tmp",
                        f"speed.{os.getpid()}.json")
    done = running.python(
        "-m", "tests.system.speed", *arguments, "--memory", "128MiB",
        "--width", "1024", "--warm-up", "3", "--measured", "1", "--json", path,
        fresh=True)
    printed = running.must_work(done)
    with open(path, encoding="utf-8") as file:
        found = json.load(file)["rows"]
    os.remove(path)
    assert len({row["name"] for row in found}) == len(found)
    assert all(_KEYS <= set(row) and not row["faults"] for row in found)
    jobs = {}
    for row in found:
        jobs.setdefault(row["job"], {})[row["figure"]] = row
    return printed, jobs


def test_inference_moves_at_least_what_does_not_fit():
    printed, jobs = _measured("inference", "--multiples", "2", "--ratios", ".1",
                              "1")
    assert len(jobs) == 2
    for (name, job), ratio in zip(jobs.items(), (.1, 1)):
        assert name in printed
        row = job["time"]
        assert row["model_bytes"] == 2 * row["card_bytes"] == 256 << 20
        assert job["in"]["baseline"] == row["model_bytes"] - row["capacity"]
        assert job["in"]["ratio"] >= 1
        assert row["baseline"] == max(job["bus"]["value"],
                                      job["compute"]["value"])
        assert row["value"] >= row["baseline"]
        assert job["compute"]["value"] == pytest.approx(
            ratio * job["bus"]["value"], rel=.2)
        assert (job["operator p50"]["value"] <= job["operator p99"]["value"]
                <= job["operator max"]["value"])
        assert job["malloc max"]["baseline"] > 0
        assert job["pinned after"]["value"] > job["pinned before"]["value"] == 0


def test_training_moves_state_both_ways():
    _, jobs = _measured("training", "--multiples", "1.5", "--optimizers", "SGD",
                        "AdamW fused")
    assert len(jobs) == 2
    for job in jobs.values():
        for way in ("in", "out"):
            assert job[way]["baseline"] == (
                job[way]["model_bytes"] - job[way]["card_bytes"])
            assert job[way]["value"] > 0
        assert job["time"]["value"] >= job["time"]["baseline"]
        assert job["time"]["goal"] is None
        # No step beats its bound, and the naive one is no more than a step.
        windows = job["bound by windows"]["value"]
        assert job["time by windows"]["baseline"] == windows
        assert windows <= job["time"]["value"]
        assert windows >= job["compute"]["value"] * .95
        for figure in ("in/optimum", "in/(state - C)"):
            assert job[figure]["value"] == job["in"]["value"]
            assert 0 < job[figure]["baseline"]


def test_llama_moves_at_least_what_does_not_fit():
    _, jobs = _measured("llama", "--quick")
    assert len(jobs) == bool(importlib.util.find_spec("transformers"))
    for job in jobs.values():
        row = job["time"]
        assert row["model_bytes"] > row["card_bytes"] == 128 << 20
        assert job["in"]["baseline"] == row["model_bytes"] - row["capacity"]
        assert job["in"]["ratio"] >= 1
        assert row["value"] >= row["baseline"]


@pytest.mark.parametrize("name, billions", [("7B", 6.738), ("70B", 68.976)])
def test_llama_has_the_published_number_of_parameters(name, billions):
    assert llama.SHAPES[name].bytes / 2e9 == pytest.approx(billions, abs=1e-3)


def test_other_means_move_the_whole_model():
    _, jobs = _measured("offload", "--multiples", "2")
    ours, *others = jobs.values()
    assert len(others) == 1 + bool(importlib.util.find_spec("accelerate"))
    assert ours["written"]["value"] == 2
    for other in others:
        assert other["in"]["value"] == other["in"]["model_bytes"]
        assert other["peak"]["value"] < other["in"]["card_bytes"] / 4
        assert other["against ours"]["baseline"] == ours["time"]["value"]
        assert other["written"]["value"] >= 2
    assert others[-1]["written"]["value"] > 20


def test_serving_is_compared_with_room():
    _, jobs = _measured("serving")
    job, = jobs.values()
    assert job["answered"]["value"] == 64
    assert 0 < job["requests against native"]["ratio"] < 1
    assert job["latency p99 against native"]["ratio"] > 1
    assert job["latency p50"]["value"] <= job["latency p99"]["value"]


def test_picture_of_the_curve_is_that_of_its_rows():
    found = rows.read(os.path.join(_HERE, "results", "curve.json")).values()
    with open(os.path.join(_HERE, "results", "curve.svg"),
              encoding="utf-8") as file:
        assert curve_picture.draw(found) == file.read()
    assert {row["percent"] for row in found} == set(curve.PERCENT)
    with pytest.raises(ValueError, match="no rows of the curve"):
        curve_picture.draw([])


@pytest.mark.parametrize("name, more", [("before", set()), ("now", {"llama"})])
def test_results_are_rows(name, more):
    found = rows.read(os.path.join(_HERE, "results", f"{name}.json")).values()
    assert {row["group"] for row in found} == {
        "inference", "training", "offload", "serving"} | more
    assert all(_KEYS <= set(row) and not row["faults"] for row in found)


def test_share_below_the_goal_misses_it():
    job = rows.Job("group", "job")
    job.add("time", 10., "ms", 9.4, "bound", least_share=.95)
    job.add("again", 10., "ms", 9.6, "bound", least_share=.95)
    job.add("wait", 3., "ms", 1., "bus", most=2)
    job.add("absent", 3., "ms", 0., "least", most=2)
    assert [row["pass"] for row in job.rows] == [False, True, False, False]
    assert [row["goal"] for row in job.rows] == [
        "share >= 0.95", "share >= 0.95", "<= 2x", "<= 2x"]


def test_table_shows_both_files_and_what_holds():
    job, old = rows.Job("group", "job"), rows.Job("group", "job")
    job.add("time", 10., "ms", 9.6, "bound", least_share=.95)
    old.add("time", 20., "ms", 9.6, "bound", least_share=.95)
    job.add("bound by windows", None, "ms")
    job.add("malloc max", 1., "ms")
    lines = rows.table(job.rows, {row["name"]: row for row in old.rows})
    assert [line.split() for line in lines] == [
        ["group", "ms", "(share)", "bound", "by", "windows,", "ms"],
        ["job", "10.0", "(0.96)", "<", "20.0", "(0.48)", "+", "?"], [],
        ["group:", "waits", "malloc", "max,", "ms"], ["job", "1"], []]


def test_file_of_other_rows_is_refused(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"rows": [{"name": "one"}]}')
    with pytest.raises(ValueError, match="not a file of the yardstick"):
        rows.read(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a file of the yardstick"):
        rows.read(path)


def test_tokens_compute_as_long_as_asked():
    one = sizing.stack(2., 1., 4 * sizing.GIB, 4096)
    two = sizing.stack(2., 2., 4 * sizing.GIB, 4096)
    assert one.bytes == 8 * sizing.GIB
    # 78.1 ms of the bus at 34.6 TFLOP/s, for 256 layers of 4096 x 4096.
    assert (one.tokens, two.tokens) == (315, 630)


def test_bound_is_the_longer_of_bus_and_compute():
    bus = (1e9, 2e9)
    assert sizing.bound(10, 12, 5., bus, True).ns == 5.
    read = sizing.bound(2_000_000, 1_000_000, 5., bus, False)
    assert (read.least_in, read.least_out, read.ns) == (1_000_000, 0, 1e6)
    slow = sizing.bound(2_000_000, 1_000_000, 5., (2e9, 1e9), True)
    assert (slow.least_out, slow.ns) == (1_000_000, 1e6)


def test_quantiles_of_few_and_of_no_values():
    assert waits.quantiles([]) == {"count": 0, "p50": 0, "p99": 0, "max": 0}
    assert waits.quantiles(range(200)) == {
        "count": 200, "p50": 100, "p99": 198, "max": 199}


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
