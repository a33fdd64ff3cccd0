# SPDX-License-Identifier: Apache-2.0
"""Each verdict of an out of memory, made for real: its sums are the card's, its
first suggestion comes true.

tests/refused_program.py makes them, a process for each set of settings.
"""

import functools
import importlib.metadata
import json
import os
import re
import sys
import types

import pytest

from bazel import programs
from stratalloc._oom import arithmetic, page, suggestions, verdict
from stratalloc._oom.autopsy import OutOfMemoryReport
from stratalloc._oom import trials as trials_module

MIB = 1 << 20
CARD = 64 * MIB
# Up to torch 2.11 a capture allocates the generator's seed and offset when it
# begins, from 2.12 on before its first random operator.
_SEED = 2 if int(importlib.metadata.version("torch").split(".")[1]) < 12 else 0
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "refused_program.py")

# case -> (verdict, the first suggestion's action, what the sentence says)
_PLAIN = {
    "capacity": ("capacity", "ask_less",
                 "100 MiB are more than the 64 MiB that the card has."),
    "fraction": ("limit", "raise_fraction",
                 "The memory fraction allows 32 MiB of the card's 64 MiB: with "
                 "8 MiB more it would have been served"),
    "scope_limit": ("limit", "raise_scope_limit",
                    "cache is limited to 4 MiB (stratalloc.limit) and owns 3 "
                    "MiB, to which 2 MiB would have come."),
    "live": ("live", "ask_less", "40 MiB are held by live tensors; the most, 30 "
             "MiB, by large (unknown)."),
    "in_pieces": ("live", "ask_less", "56 MiB are held by live tensors"),
    "fragmented": ("fragmented", "free", "beside it would be enough, but they "
                   "are in pieces: the largest request"),
    "private_pools": ("private_pools", "release_pools",
                      "40 MiB are free and reserved by private pools"),
    "pending": ("pending", "wait", "40 MiB are freed and other streams still "
                "use them, whom nobody can wait for while a CUDA graph is "
                "captured"),
    "other_processes": ("other_processes", "end_processes",
                        "40 MiB of the card's 64 MiB are held by other "
                        "processes on the card"),
    "unknown": ("unknown", "end_others", "the driver does not say which"),
    "non_torch": ("non_torch", "end_others",
                  "held by this process outside of PyTorch"),
    "came_free": ("came_free", None, "what was lacking came free since"),
}
_LIMITED = {
    "tiers_full": ("tiers_full", "raise_room",
                   "6 MiB more would have had to leave the device, and the "
                   "host and the disk have room for 0 B."),
    "gpu_limit": ("limit", "raise_limit", "40 MiB are more than the 32 MiB of "
                  "the card's 64 MiB that gpu_limit allows."),
}
_TIERED = {
    "working_set": ("working_set", "free", "needs 40 MiB at once, which do not "
                    "fit into 64 MiB beside what cannot leave: 16 MiB are "
                    "missing."),
    "pinned": ("live", "unpin", "40 MiB are held by live tensors"),
}


def _run(cases, **settings):
    done = programs.run(_PROGRAM, json.dumps(
        {"cases": list(cases), "settings": settings}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def _plain():
    return _run(_PLAIN, tiering=False)


_SMALL = {"gpu_limit": "32MiB", "host_budget": "8MiB", "disk_budget": 0}


@functools.cache
def _limited():
    return _run(_LIMITED, **_SMALL)


@functools.cache
def _tiered():
    return _run(_TIERED, host_budget="1GiB", disk_budget=0)


_ALL = [(runs, name, wanted)
        for runs, cases in ((_plain, _PLAIN), (_limited, _LIMITED),
                            (_tiered, _TIERED))
        for name, wanted in cases.items()]
each = pytest.mark.parametrize("runs, name, wanted", _ALL,
                               ids=[name for _, name, _ in _ALL])


@each
def test_the_verdict_is_the_cause(runs, name, wanted):
    kind, action, says = wanted
    report = runs()[name]["report"]
    assert report["verdict"]["kind"] == kind
    assert says in report["verdict"]["sentence"], report["verdict"]
    actions = [one["action"] for one in report["suggestions"]]
    assert actions[:1] == ([action] if action else []), report["suggestions"]


def test_every_verdict_is_made():
    assert {wanted[0] for _, _, wanted in _ALL} == set(verdict.KINDS)


@each
def test_the_arithmetic_adds_up_to_the_card(runs, name, wanted):
    report = runs()[name]["report"]
    rows = report["arithmetic"]
    assert list(rows) == list(arithmetic.ROWS)
    assert min(rows.values()) >= 0
    assert sum(rows.values()) == CARD
    held = report["facts"]["parts"]["held"]
    assert sum(rows[key] for key in (
        "allocated", "pending", "stranded", "releasable",
        "in_private_pools")) == held["reserved"]


@each
def test_the_first_suggestion_comes_true(runs, name, wanted):
    said = runs()[name]
    if said["applied"] is None:
        pytest.fail("of a new process") if name not in _LIMITED else None
        return
    assert said["applied"] == "served"


def test_what_ends_is_tried_and_ranked_by_bytes():
    said = {name: [(one["action"], one["bytes"] // MIB, one["text"])
                   for one in _plain()[name]["report"]["suggestions"]]
            for name in ("live", "in_pieces")}
    assert [one[:2] for one in said["live"]] == [("ask_less", 16),
                                                 ("free", 30)]
    assert "30 MiB of large (unknown), in 1 block:" in said["live"][1][2]
    # Of 18 MiB in pieces no handle would come free.
    assert [one[:2] for one in said["in_pieces"]] == [("ask_less", 12),
                                                      ("free", 20)]


class _Serving:
    """Trials in which whatever ends serves, and nothing else does."""

    base = types.SimpleNamespace(served=False, missing=MIB)
    fits = 8 * MIB

    def served(self, what):
        return False

    def would_serve(self, frees=(), **trial):
        return bool(frees)


def test_blocks_of_a_model_are_never_suggested():
    report = _plain()["live"]["report"]
    blocks = [{"address": index, "bytes": held * MIB, "owner": "Net",
               "category": category}
              for index, (held, category) in enumerate([
                  (4, "parameter"), (40, "activation"), (60, "temporary")])]
    facts = {**report["facts"], "bytes": 10 * MIB, "blocks": blocks}
    facts["explanation"] = {**facts["explanation"], "frees": blocks[:1]}
    found = suggestions.find(facts, _Serving(),
                             verdict.Verdict(**report["verdict"]))
    assert [(one.action, one.blocks) for one in found] == [
        ("ask_less", ()), ("free", (1,))]


def test_enough_that_is_free_in_pieces_is_no_matter_of_live_tensors():
    """Whole handles that cannot leave hide the holes in them."""
    report = _plain()["live"]["report"]
    facts = json.loads(json.dumps(report["facts"]))
    facts["staying"] = 64 * MIB
    facts["why_no_tiering"] = ""
    facts["rounded"] = 24 * MIB
    trials = _Serving()
    trials.fits = 2 * MIB
    said = verdict.judge(facts, trials)
    assert said.kind == "fragmented"
    assert said.sentence == (
        "Of 64 MiB, 40 MiB are held by live tensors, in handles that these "
        "keep, and the 24 MiB beside it would be enough, but they are in "
        "pieces: the largest request that would be served is 2 MiB.")
    facts["rounded"] += MIB
    said = verdict.judge(facts, trials)
    assert said.kind == "live" and said.sentence.startswith(
        "25 MiB do not fit: of 64 MiB that PyTorch may have here, 40 MiB are")


def test_last_pieces_of_a_full_card_are_not_the_cause():
    """As in the exception, which names the holders there."""
    facts = json.loads(json.dumps(_plain()["live"]["report"]["facts"]))
    facts["why_no_tiering"] = "disable() has switched tiering off"
    facts["rounded"] = MIB
    held = facts["parts"]["held"]
    for free, kind in ((16 * MIB, "fragmented"), (16 * MIB - 512, "live")):
        held["allocated"] = 64 * MIB - free - held["pending"]
        held["allocated"] -= held["in_private_pools"]
        assert verdict.judge(facts, _Serving()).kind == kind


def test_growth_since_a_mark_is_said_beside_what_helps():
    report = _plain()["live"]["report"]
    changed = {"mark": "step 1", "rows": [
        {"owner": "cache", "category": "unknown", "bytes": 30 * MIB}]}

    def told(rows):
        made = OutOfMemoryReport.from_dict({**report, "facts": {
            **report["facts"], "changed": rows}})
        return page.text(made).partition("## 9")[0].partition("## 8")[2]

    assert ("Since step 1 cache (unknown) holds 30 MiB more, on all tiers" in
            told(changed))
    changed["rows"][0]["bytes"] = report["verdict"]["bytes"]
    assert "Since" not in told(changed)
    assert "Since" not in told(None)


def test_where_no_owner_alone_is_enough_the_largest_end_together():
    """Nine owners with enough bytes, in handles that they share."""
    report = _plain()["live"]["report"]
    blocks = [{"address": index, "bytes": (10 + index) * MIB,
               "owner": f"Net.{index}", "category": "activation"}
              for index in range(9)]

    class Sharing(_Serving):
        needed = {8, 7, 6}

        def would_serve(self, frees=(), **trial):
            return self.needed <= set(frees)

    trials = Sharing()
    facts = {**report["facts"], "bytes": 10 * MIB, "blocks": blocks,
             "explanation": None}
    judged = verdict.Verdict(**report["verdict"])

    def freed():
        return [(one.blocks, one.text) for one in suggestions.find(
            facts, trials, judged) if one.action == "free"]

    (ends, text), = freed()
    assert ends == (8, 7, 6)
    assert "18 MiB of Net.8 (activation), 17 MiB of Net.7" in text
    assert "keeps all of its graph" in text
    trials.needed = {8}
    assert freed()[0][0] == (8,)
    trials.needed = {0}
    assert freed()[0][0] == (0,), "the smallest is asked first"
    trials.needed = {99}
    assert freed() == []


def test_under_a_limit_only_what_the_card_serves_is_said():
    facts = _plain()["scope_limit"]["report"]["facts"]
    judged = verdict.Verdict(
        **_plain()["scope_limit"]["report"]["verdict"])

    def said(served, fits):
        trials = _Serving()
        trials.base = types.SimpleNamespace(missing=MIB, served=served)
        trials.fits = fits
        return [(one.action, one.to)
                for one in suggestions.find(facts, trials, judged)]

    assert said(served=True, fits=2 * MIB) == [("raise_scope_limit", 5 * MIB),
                                         ("ask_less", MIB)]
    assert said(served=False, fits=MIB // 2) == [("ask_less", MIB // 2)]
    assert said(served=False, fits=0) == [], "the card is full"


def test_a_setting_keeps_its_name_at_the_beginning_of_a_sentence():
    facts = _plain()["fraction"]["report"]["facts"]
    parts = {**facts["parts"], "fraction": 1.}
    trials = _Serving()
    trials.served = lambda what: what == "more_limit"

    def said(**change):
        return verdict.judge({**facts, **change}, trials).sentence

    assert said().startswith("The memory fraction allows 32 MiB")
    assert said(parts=parts, settings={"gpu_limit": 32 * MIB}).startswith(
        "gpu_limit allows 32 MiB")


def test_a_name_is_no_markup_anywhere_on_the_page():
    from stratalloc._oom.autopsy import OutOfMemoryReport

    name = "![x](http://evil.example/x.png)<b>`|"
    report = json.loads(json.dumps(_plain()["live"]["report"]).replace(
        "large", json.dumps(name)[1:-1]))
    text = page.text(OutOfMemoryReport.from_dict(report))
    for section in (2, 4, 8):
        shown = text.partition(f"## {section}.")[2].partition("\n## ")[0]
        assert "evil.example" in shown, section
    assert "![x](" not in text and "<b>" not in text.replace("\\<b", "")
    assert "`|" not in text


def test_of_an_owner_no_more_blocks_end_than_it_takes():
    report = _plain()["live"]["report"]
    blocks = [{"address": index, "bytes": held * MIB, "owner": "cache",
               "category": "temporary"}
              for index, held in enumerate([1, 9, 2, 8, 3, 7, 4, 6, 5, 5])]

    class Counting(_Serving):
        needed = 16 * MIB

        def would_serve(self, frees=(), **trial):
            return sum(block["bytes"] for block in blocks
                       if block["address"] in frees) >= self.needed

    trials = Counting()
    facts = {**report["facts"], "blocks": blocks, "explanation": None}

    def freed():
        return [(one.blocks, one.bytes // MIB) for one in suggestions.find(
            facts, trials, verdict.Verdict(**report["verdict"]))
                if one.action == "free"]

    assert freed() == [((1, 3), 17)]
    trials.needed = 9 * MIB
    assert freed() == [((1,), 9)]
    trials.needed = 50 * MIB
    assert freed() == [((1, 3, 5, 7, 8, 9, 6, 4, 2, 0), 50)]


@each
def test_the_verdict_s_bytes_are_what_is_lacking(runs, name, wanted):
    report = runs()[name]["report"]
    lacking = {
        "capacity": 36, "fraction": 8, "scope_limit": 1, "live": 16,
        "in_pieces": 12, "private_pools": 16, "pending": 16 + _SEED,
        "other_processes": 6, "unknown": 6, "non_torch": 6, "came_free": 0,
        "tiers_full": 6, "gpu_limit": 8, "working_set": 16, "pinned": 6}
    if name in lacking:
        assert report["verdict"]["bytes"] == lacking[name] * MIB
    else:  # in pieces: the limit lacks handles
        assert 0 < report["verdict"]["bytes"] <= report["rounded"]


class _Core:
    """What is asked of the core, and what it answers in turn."""

    Tried = types.SimpleNamespace

    def __init__(self, monkeypatch, now, **answer):
        self.asked, self.answer, self.now = [], answer, now
        monkeypatch.setattr(trials_module, "_core", self)
        monkeypatch.setattr(trials_module, "time", self)

    def monotonic(self):
        return self.now[0]

    def try_again(self, told, trials):
        self.asked += trials
        self.now[0] += self.now[1]
        return [types.SimpleNamespace(**self.answer)]


def test_a_copy_that_is_dear_bounds_the_trials(monkeypatch):
    facts = _plain()["live"]["report"]["facts"]
    core = _Core(monkeypatch, [0., .75], served=False, missing=MIB, fits=7)
    trials = trials_module.Trials(None, facts)
    assert trials.would_serve(more_card=1) is False
    assert trials.would_serve(more_card=2) is False
    assert len(core.asked) == 3
    # After more than two seconds nothing is asked any more.
    core.answer["served"] = True
    assert trials.would_serve(more_card=3) is False
    assert trials.fits is None and len(core.asked) == 3


def test_who_needs_no_size_measures_none(monkeypatch):
    facts = _plain()["live"]["report"]["facts"]
    core = _Core(monkeypatch, [0., 0.], served=False, missing=MIB, fits=7)
    trials = trials_module.Trials(None, facts)
    verdict.judge(facts, trials)
    assert not [one for one in core.asked if "measure" in one]
    count = len(core.asked)
    assert trials.fits == trials.fits == 7
    assert not trials.served("streams_end")
    assert not trials.served("streams_end")
    assert core.asked[count:] == [{"measure": 1}, {"streams_end": 1}]


def test_settings_that_were_suggested_serve_what_was_refused():
    said = {name: one["report"]["suggestions"][0]
            for name, one in _limited().items()}
    again = programs.run(_PROGRAM, json.dumps({
        "cases": list(_LIMITED), "settings": {
            **_SMALL, "gpu_limit": said["gpu_limit"]["to"],
            "host_budget": said["tiers_full"]["to"]}}))
    assert again.stderr.strip().endswith("tiers_full: it was served")


# kind of the verdict -> what the exception says
_CAUSES = {
    "capacity": r"The tensor is larger than the card: ",
    "limit": r"gpu_limit|The memory fraction allows|cache is limited to",
    "tiers_full": r"raise host_budget or disk_budget",
    "working_set": r"operands are the largest part, and activations hold 40\.00",
    "pending": r"in use by other streams until the capture",
    "private_pools": r"CUDA graphs and MemPools keep 40\.00 MiB free",
    "fragmented": r"are free, but in pieces between ",
    "other_processes": r"Other processes hold more of the card",
    "non_torch": r"Libraries of this process hold ",
    "unknown": r"held by other processes, or by libraries of this one",
    "live": r"hold \d+\.\d\d MiB",
    # It came free later, by an observer of torch's.
    "came_free": r"hold 60\.00 MiB",
}


@each
def test_the_exception_and_the_verdict_name_one_cause(runs, name, wanted):
    message = runs()[name]["message"]
    assert message.startswith("CUDA out of memory. ")
    assert re.search(_CAUSES[wanted[0]], message), message
    # A call that needs an argument, or the second half of native's text.
    assert "explain" not in message and "reserved by PyTorch" not in message


@each
def test_a_report_takes_no_device_memory(runs, name, wanted):
    if name == "came_free":  # which gives some back meanwhile
        return
    before, after = runs()[name]["moved"]
    assert before == after


@each
def test_report_has_the_shape_of_a_result(runs, name, wanted, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(
        DataFrame=lambda rows, columns: rows))
    report = OutOfMemoryReport.from_dict(runs()[name]["report"])
    assert report.text(depth=1, all=True) == str(report) == page.text(report)
    assert dict(report) == report.to_dict() == report
    rows = report.to_pandas()
    assert sum(row["bytes"] for row in rows) == CARD


@each
def test_the_page_has_every_section(runs, name, wanted):
    from stratalloc._oom.autopsy import OutOfMemoryReport

    report = OutOfMemoryReport.from_dict(runs()[name]["report"])
    text = page.text(report)
    assert [line[:5] for line in text.splitlines()
            if line.startswith("## ")] == [f"## {i}." for i in range(1, 10)]
    assert page.cell(report.verdict.sentence) in text
    assert f"| capacity | {CARD} | 64 MiB |" in text
    # Something may have left, and not enough.
    assert "nothing could be evicted" not in text


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
