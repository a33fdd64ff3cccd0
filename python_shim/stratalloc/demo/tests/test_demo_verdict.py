# SPDX-License-Identifier: Apache-2.0
"""The demo's verdict: each way of being wrong is named."""

import array
import copy
import io

import pytest
import rich.console

from stratalloc.demo import job
from stratalloc.demo import story
from stratalloc.demo import tables
from stratalloc.demo import verdict

_NUMBERS = array.array("f", [0.5, -1.0, 2.0]).tobytes()
_QUERIES = [{"query": "q", "answers": [{"sentence": "a", "score": 1.0}]}]
_SETTINGS = {"device": "sim", "gpu_memory": 64 << 20, "host_budget": 32 << 20}
_OURS = {
    "parameter_bytes": 90 << 20, "sentences": 220, "queries": _QUERIES,
    "peak_allocated": 50 << 20, "peak_reserved": 60 << 20,
    "device_capacity": 64 << 20, "host_budget": 32 << 20,
    "counters": {"bridged_ops": 5, "launches_without_twin": 0,
                 "storages_outside": 0, "violations": 0},
    "report": {
        "layers": [{"owner": "BertModel.encoder.layer.0.attention.self.query",
                    "category": "parameter", "live": 10, "peak": 12,
                    "device": 4, "host": 6, "disk": 0, "evicted": 7,
                    "restored": 3, "to_disk": 2, "from_disk": 1, "stalls": 1,
                    "stall_ns": 2000000}],
        "handles": {"restored_before_use": 3},
        "tiers": {"host_peak": 30 << 20, "host_reserved": 31 << 20,
                  "host_reserved_peak": 32 << 20, "bytes_evicted": 7,
                  "bytes_restored": 3, "bytes_to_disk": 2,
                  "bytes_from_disk": 1},
    },
}
_NATIVE = {"error": "CUDA out of memory.",
           "error_type": "torch.OutOfMemoryError"}
_CPU = {"queries": _QUERIES}


def _combine(ours=None, native=None, cpu=None, numbers=_NUMBERS):
    return verdict.combine(_SETTINGS, native or _NATIVE, ours or _OURS,
                           cpu or _CPU, numbers, _NUMBERS)


def test_all_right():
    values = _combine()
    assert values["ok"] and values["faults"] == []
    for key in ("native_error", "max_abs_diff_vs_cpu", "queries",
                "bytes_evicted", "bytes_restored", "bytes_to_disk",
                "bytes_from_disk", "peak_allocated", "peak_reserved",
                "device_capacity", "parameter_bytes", "host_budget",
                "host_peak", "host_reserved_peak", "bridged_ops",
                "launches_without_twin",
                "refused_calls", "device_ptrs_outside_arena",
                "restored_before_use", "layers"):
        assert key in values, key
    assert values["max_abs_diff_vs_cpu"] == 0
    assert values["virtual"] == {}  # no card, no seconds
    assert (values["bytes_evicted"], values["bytes_to_disk"]) == (7, 2)


@pytest.mark.parametrize("change,word", [
    (lambda ours: ours["counters"].update(launches_without_twin=2), "twin"),
    (lambda ours: ours["counters"].update(refused_calls=1), "refused"),
    (lambda ours: ours["counters"].update(storages_outside=1), "outside"),
    (lambda ours: ours["counters"].update(violations=1), "violations"),
    (lambda ours: ours["counters"].update(bridged_ops=0), "no operator"),
    (lambda ours: ours["report"]["handles"].update(restored_before_use=0),
     "restored"),
    (lambda ours: ours["report"]["tiers"].update(
        host_reserved_peak=33 << 20), "budget"),
    (lambda ours: ours.update(error="layer 3 is corrupt"), "layer 3"),
    (lambda ours: ours.update(queries=[]), "answers"),
])
def test_faults_are_named(change, word):
    ours = copy.deepcopy(_OURS)
    change(ours)
    values = _combine(ours)
    assert not values["ok"]
    assert any(word in fault for fault in values["faults"]), values["faults"]


@pytest.mark.parametrize("numbers", [
    array.array("f", [0.5, -1.0, 2.0000002]).tobytes(),
    array.array("f", [0.5, -1.0, float("nan")]).tobytes(),
    array.array("f", [0.5, -1.0]).tobytes(),
    b"",
])
def test_other_numbers_fail(numbers):
    assert not _combine(numbers=numbers)["ok"]


def test_failed_cpu_run_is_a_fault():
    assert not _combine(cpu={"error": "killed"})["ok"]


def test_what_failed_is_told_once():
    ours = copy.deepcopy(_OURS)
    ours.update(error="layer 3 is corrupt", error_type="RuntimeError")
    values = _combine(ours)
    shown = io.StringIO()
    console = rich.console.Console(file=shown, width=200)
    story._tell_ours(console, values)
    story._tell_comparison(console, values)
    assert shown.getvalue().count("layer 3 is corrupt") == 1
    assert "FAILED: the run under stratalloc failed: see above" in (
        shown.getvalue())


def test_layers_are_grouped():
    assert (tables.group("BertModel.encoder.layer.3.attention.self.query")
            == "encoder.layer.3")
    assert tables.group("BertModel.embeddings.word_embeddings") == (
        "word_embeddings")
    assert tables.group("unknown") == "unknown"
    (name, sums), = tables.grouped(_OURS["report"]["layers"])
    assert name == "encoder.layer.0" and sums["evicted"] == 7
    assert tables.where(sums) == "40/60/0"
    assert tables.stalls(sums) == "1 (2)"


def test_sentences_are_real_and_distinct():
    texts = job.sentences()
    assert len(texts) >= 200 and len(set(texts)) == len(texts)
    assert all(len(text.split()) >= 6 for text in texts)
