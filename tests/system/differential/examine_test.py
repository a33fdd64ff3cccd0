# SPDX-License-Identifier: Apache-2.0
"""What a first run shows is kept, whatever a second one says."""

import copy

import pytest

from tests.system.differential import compare, examine

CASE = {"seed": 1, "mode": "eager", "room": None}
STARVED = {**CASE, "room": 64 << 20}
STEPS = [["alloc", 0, 100, 0], ["free", 0], ["empty_cache"]]
MIB = 1 << 20


def counted(number, reserved=2 * MIB, waits=(), frees=0, **more):
    """One count: a device with a block of 512 bytes in its small pool."""
    equal = {f"{name}.{kind}.{key}": 512 if name == "requested_bytes" else 1
             for name in ("requested_bytes", "allocation", "active")
             for kind in ("all", "small_pool")
             for key in ("current", "peak", "allocated", "freed")}  # fmt: skip
    bounded = {f"{name}.{kind}.{key}": 0 if kind == "large_pool" else 512
               for name in ("allocated_bytes", "active_bytes")
               for kind in compare.KINDS for key in ("current", "peak")}  # fmt: skip
    for kind in compare.KINDS:
        bounded[f"reserved_bytes.{kind}.current"] = (
            0 if kind == "large_pool" else reserved
        )
    return {"number": number, "waits": waits, "frees": frees, "refused": None,
            "statistics": [[{**equal, "num_ooms": 0}, bounded]], **more}  # fmt: skip


def log(*changes):
    """Of STEPS and their end; a change is (what is shown, what is counted)."""
    made = [[None, counted(i)] for i in range(len(STEPS) + 1)]
    for number, shown, keys in changes:
        made[number] = [shown, counted(number, **keys)]
    return {"log": made}


def layout(small, across=0, free=0, waiting=0):
    return [{"small_pool": small, "large_pool": 0, "small_pool_free": free,
             "large_pool_free": 0, "small_pool_waiting": waiting,
             "large_pool_waiting": 0, "across": across}]  # fmt: skip


class Fake:
    """Pairs that answer what they are told."""

    def __init__(self, native, ours, layouts=None, again=None):
        self.answers = [(native, ours)]
        self.layouts = layouts or {}
        self.again = again or {"native": native, "ours": ours}
        self.programs = []

    def run(self, steps, case):
        assert case in (CASE, STARVED)
        self.programs.append(steps)
        return self.answers[min(len(self.programs), len(self.answers)) - 1]

    def look(self, side, _steps, _case, at):
        answer = copy.deepcopy(self.again[side])
        for each in compare.counts(answer["log"]):
            if at in ("every", each["number"]):
                each["layout"] = self.layouts[side]
        return answer


def examine_once(*arguments, **more):
    fake = Fake(*arguments, **more)
    examiner = examine.Examiner(fake)
    return fake, examiner, examiner.unexplained(STEPS, CASE)


BEYOND = (1, None, {"reserved": 4 * MIB})  # a handle more than native


def test_what_is_equal_is_no_difference():
    _, examiner, found = examine_once(log(), log())
    assert found is None
    assert examiner.account()["kept"] == [] and examiner.account()["looks"] == 0


def test_within_the_handles_is_kept_and_counted():
    _, examiner, found = examine_once(log(), log(BEYOND),
                                      layouts={"native": layout(1)})  # fmt: skip
    assert found is None
    assert examiner.classes == {"handles": {"programs": 1, "counts": 1}}
    (kept,) = examiner.kept
    assert kept["class"] == "handles" and kept["step"] == [1]
    assert "1 handles beyond, 1 by the layout of native" in kept["said"]


def test_across_two_handles_takes_a_look_at_ours():
    layouts = {"native": layout(0), "ours": layout(0, across=1)}
    _, examiner, found = examine_once(log(), log(BEYOND), layouts=layouts)
    assert found is None
    assert examiner.looks == {"native": 1, "ours": 1}
    assert list(examiner.classes) == ["across"]


@pytest.mark.parametrize("frees, kind", [(1, "kept"), (0, "different")])
def test_what_natives_ladder_gave_back_may_be_kept(frees, kind):
    native = log((0, None, {"reserved": 8 * MIB}),
                 (1, None, {"reserved": 2 * MIB, "frees": frees}))  # fmt: skip
    ours = log((0, None, {"reserved": 8 * MIB}),
               (1, None, {"reserved": 8 * MIB}))  # fmt: skip
    layouts = {"native": layout(0), "ours": layout(0)}
    fake = Fake(native, ours, layouts=layouts)
    # Where there is room for all that is cached, nothing is given back.
    for case, found in ((CASE, "different"), (STARVED, kind)):
        examiner = examine.Examiner(fake)
        examiner.unexplained(STEPS, case)
        assert list(examiner.classes) == [found]


@pytest.mark.parametrize("case, kind", [(STARVED, "cached"), (CASE, "different")])
def test_what_holds_nothing_may_be_cached_by_the_starved(case, kind):
    layouts = {"native": layout(0), "ours": layout(0, free=1)}
    examiner = examine.Examiner(Fake(log(), log(BEYOND), layouts=layouts))
    examiner.unexplained(STEPS, case)
    assert list(examiner.classes) == [kind]


def test_beyond_every_bound_is_a_difference():
    layouts = {"native": layout(0), "ours": layout(0)}
    _, _, found = examine_once(log(), log(BEYOND), layouts=layouts)
    assert found.kind == "different" and "reserved_bytes" in found.text


def test_a_second_run_that_shows_nothing_takes_nothing_back():
    """Emptied bins once hid what came behind an explained difference."""
    wrong = (2, "RuntimeError: wrong", {})
    _, examiner, found = examine_once(
        log(), log(BEYOND, wrong), layouts={"native": layout(1)},
        again={"native": log(), "ours": log()})  # fmt: skip
    assert "RuntimeError: wrong" in found.text and found.said == ""
    assert [each["class"] for each in examiner.kept] == ["handles", "different"]


def test_a_look_at_another_run_explains_nothing():
    other = {"native": log((0, None, {"reserved": 6 * MIB})), "ours": log()}
    layouts = {"native": layout(9), "ours": layout(9)}
    _, _, found = examine_once(log(), log(BEYOND), layouts=layouts, again=other)
    assert found.kind == "different"
    assert "native did not do the same again" in found.said
    assert "ours did not do the same again" in found.said


def refused(number, size, **keys):
    text = "OutOfMemoryError: Tried to allocate N."
    return number, text, {"refused": [0, size], **keys}


def test_what_native_refuses_is_counted_and_left_out():
    fake = Fake(log(refused(1, 100)), log())
    fake.answers.append((log(), log()))
    examiner = examine.Examiner(fake)
    assert examiner.unexplained(STEPS, CASE) is None
    assert examiner.classes == {"served": {"programs": 1, "counts": 1}}
    assert fake.programs == [STEPS, [STEPS[0], STEPS[2]]]
    assert examiner.account()["runs"] == 2


@pytest.mark.parametrize("handles, kind", [(1, None), (0, "different")])
def test_what_ours_refuses_has_the_same_bound(handles, kind):
    layouts = {"native": layout(handles), "ours": layout(handles)}
    fake = Fake(log(), log(refused(1, 100)), layouts=layouts)
    fake.answers.append((log(), log()))
    examiner = examine.Examiner(fake)
    found = examiner.unexplained(STEPS, CASE)
    assert (found and found.kind) == kind
    assert examiner.account()["refused"] == 0  # by both


def waiting(number, blocks, waits):
    made = counted(number, waits=waits)
    made["statistics"][0][0]["active.all.current"] = blocks
    return made


@pytest.mark.parametrize(
    "waits, kind", [([1, 0], "waited"), ([0, 1], "different")]
)
def test_what_waits_for_events_may_differ_after_a_wait(waits, kind):
    native, ours = log(), log()
    native["log"][1][1] = waiting(1, 1, waits)
    ours["log"][1][1] = waiting(1, 2, [0, 1])
    _, examiner, found = examine_once(native, ours)
    assert list(examiner.classes) == [kind]
    assert (found is None) == (kind == "waited")


@pytest.mark.parametrize(
    "native, kind", [((1, 0), "waited"), ((0, 0), "different")]
)
def test_what_waits_for_events_keeps_its_handles(native, kind):
    beyond = (1, None, {"reserved": 4 * MIB, "waits": (0, 0)})
    layouts = {"native": layout(0), "ours": layout(0, waiting=1)}
    _, examiner, _ = examine_once(log((1, None, {"waits": native})),
                                  log(beyond), layouts=layouts)  # fmt: skip
    assert list(examiner.classes) == [kind]


def test_a_step_inside_of_another_is_found_there():
    steps = [["in_pool", 0, [["free", 1], ["free", 2]]], ["free", 0]]
    inner = [[None, counted(0)], [None, counted(1)]]
    native = {"log": [[[[1], inner, [1, []]], counted(2)],
                      [None, counted(3)], [None, counted(4)]]}  # fmt: skip
    ours = copy.deepcopy(native)
    ours["log"][0][0][1][1][0] = True
    (found,) = compare.differences(steps, native, ours)
    assert found.path == [0, 1] and found.at == -1
    assert "step 0.1, ['free', 2]" in str(found)
