# SPDX-License-Identifier: Apache-2.0
"""Steps of torch's snapshots and of recordings: which range is the step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from stratalloc.telemetry import identities, import_torch, model
from stratalloc.telemetry.analysis import owners, scope_ranges, steps
from stratalloc.telemetry.model import Kind

_AT = 1_700_000_000_000_000


class _Snapshot:
    """Events of a loop as torch writes them, made line by line."""

    def __init__(self):
        self.notes, self.trace, self.time = [], [], _AT

    def note(self, name, stage, device=0):
        self.time += 1
        self.notes.append({"name": name, "stage": stage, "device": device,
                           "time_us": self.time})

    def range(self, name, *body):
        self.note(name, "START")
        for one in body:
            one() if callable(one) else self.range(*one)
        self.note(name, "END")

    def leak(self, size=1 << 20):
        self.time += 1
        self.trace.append({
            "action": "alloc", "addr": 1 << 40 | len(self.trace) << 21,
            "size": size, "stream": 0, "time_us": self.time, "frames": [
                {"filename": "/p/train.py", "line": 14, "name": "train"}]})

    def value(self):
        return {"segments": self.segments(), "device_traces": [self.trace],
                "external_annotations": self.notes}

    def segments(self):
        """One for each block: nothing is freed."""
        return [{"device": 0, "address": one["addr"], "total_size": one["size"],
                 "stream": 0, "segment_type": "large", "is_expandable": False,
                 "blocks": [{"address": one["addr"], "size": one["size"],
                             "requested_size": one["size"],
                             "state": "active_allocated"}]}
                for one in self.trace if one["action"] == "alloc"]

    def steps(self):
        run = import_torch.from_snapshot(self.value())
        assert identities.check(run) == []
        return steps.of(run)


_SGD = ("Optimizer.step#SGD.step",)
_ZERO = ("Optimizer.zero_grad#SGD.zero_grad",)


def test_leaks_of_annotated_snapshot_names_the_line_that_grows():
    made = _Snapshot()
    for _ in range(20):
        made.range("## step ##", _SGD, _ZERO, made.leak)
    found = owners.leaks(import_torch.from_snapshot(made.value()), by="site")
    assert [(row.name, row.per_step) for row in found.rows] == [
        ("/p/train.py:14", 1 << 20)]
    assert str(found).startswith(
        "device 0, 20 steps, from one ## step ## to the next: 1 grow")


# name -> (body of a loop as ranges, its passes, the range that is the step)
_LOOPS = {
    "profiler steps": ([("ProfilerStep#{}", _SGD, _ZERO)], 15,
                       "ProfilerStep#N"),
    "optimizer alone": ([("## forward ##",), ("## backward ##",), _SGD,
                         _ZERO], 15, "Optimizer.step#SGD.step"),
    "optimizer in a range of its own": (
        [("train", ("forward",), ("update", _SGD))], 15, "train"),
    "micro-batches": ([("step", *[("micro_step", ("forward",))] * 4, _SGD)],
                      13, "step"),
    "evaluation in between": (
        [("train_batch", _SGD), ("eval_batch",), ("eval_batch",)], 13,
        "train_batch"),
    "one name for training and evaluation": (
        [("batch", _SGD), ("batch",)], 13, "batch"),
    "steps of two optimizers": (
        [("iteration {}", ("d", _SGD), ("g", _SGD))], 14, "iteration N"),
    "some optimizer steps in a range": (
        [_SGD, _SGD, _SGD, ("with checkpoint", _SGD)], 13, _SGD[0]),
    "no optimizer": ([("step {}", ("prefill",), ("decode",), ("decode",))], 16,
                     "step N"),
    "no step by name": ([("generate", ("decode",), ("decode",))], 16,
                        "generate"),
}


@pytest.mark.parametrize("name", sorted(_LOOPS))
def test_step_of_a_loop_is_the_range_around_its_optimizer(name):
    body, count, wanted = _LOOPS[name]
    made = _Snapshot()

    def put(one, i):
        made.range(one[0].format(i), *[
            lambda part=part: put(part, i) for part in one[1:]])

    made.range("warmup", _SGD, _SGD)
    made.note("epoch", "START")
    for i in range(count):
        for one in body:
            put(one, i)
    made.note("epoch", "END")
    found = made.steps()
    assert found.what == f"from one {wanted} to the next"
    if wanted == _SGD[0]:  # with those of the warm-up
        count = 2 + count * str(body).count(_SGD[0])
    assert len(found.moments) == count


def test_ranges_of_crossing_threads_are_all_found():
    made = _Snapshot()
    for i in range(12):
        made.note("## step ##", "START")
        made.note("all-reduce", "START")
        made.range("Optimizer.step#Adam.step")
        made.note("## step ##", "END")
        made.note("all-reduce", "END")
    found = made.steps()
    assert len(found.moments) == 12 and "## step ##" in found.what
    run = import_torch.from_snapshot(made.value())
    assert run.threads == ["main", "annotations", "annotations 2"]
    assert not (run.events["kind"] == Kind.MARK).any()


def test_range_without_its_start_is_left_and_not_counted():
    made = _Snapshot()
    made.note("## step ##", "END")
    for _ in range(12):
        made.range("## step ##", _SGD)
    made.note("## step ##", "START")
    run = import_torch.from_snapshot(made.value())
    assert identities.check(run) == []
    kinds = run.events["kind"].tolist()
    assert kinds.count(Kind.SCOPE_ENTER) == 25
    assert kinds.count(Kind.SCOPE_LEAVE) == 25
    assert len(steps.of(run).moments) == 12


@pytest.mark.parametrize("devices", ["each", "current"])
def test_user_defined_events_of_torch_2_4_are_ranges(devices):
    made = _Snapshot()
    for i in range(13):
        made.range(f"ProfilerStep#{i}", _SGD, made.leak)
    notes = [{"action": "user_defined", "addr": 0, "size": 0, "stream": 0,
              "time_us": note["time_us"], "frames": [{
                  "name": note["stage"], "filename": note["name"], "line": 0}]}
             for note in made.notes]
    trace = sorted(notes + made.trace, key=lambda one: one["time_us"])
    # Another device's ring is full of newer events: its notes are the last.
    other = notes[10:] if devices == "each" else []
    run = import_torch.from_snapshot(
        {"segments": made.segments(), "device_traces": [trace, other]})
    assert identities.check(run) == [] and len(run.events) == 13 + 2 * 26
    found = owners.leaks(run, 0)
    assert found.steps == 13 and "ProfilerStep#" in found.at


def test_annotate_relabels_a_block_and_is_no_step():
    made = _Snapshot()
    for i in range(12):
        made.leak()
        made.trace.append({**made.trace[-1], "action": "annotate",
                           "user_metadata": "kv cache"})
    run = import_torch.from_snapshot(made.value())
    assert identities.check(run) == []
    assert [(row.name, row.bytes) for row in owners.tree(
        run, at="end").rows] == [("kv cache", 12 << 20)]
    found = steps.of(run)
    assert found.moments == []
    assert str(owners.leaks(run)) == (
        "device 0, no steps are recorded: 12 steps are needed to see what "
        "grows; put each step into `with torch.profiler.record_function("
        "\"step\")` and record with _record_memory_history("
        "global_record_annotations=True)")


def test_too_few_steps_are_counted_and_the_cure_is_named():
    made = _Snapshot()
    for _ in range(5):
        made.range("## step ##", _SGD)
    said = str(owners.leaks(import_torch.from_snapshot(made.value())))
    assert said.startswith("device 0, 5 steps, from one ## step ## to the "
                           "next: 12 steps are needed")
    maker = made_runs.Maker()
    maker.alloc(512)
    assert str(owners.leaks(maker.finish())) == (
        "device 0, no steps are recorded: 12 steps are needed to see what "
        "grows; call stratalloc.mark() at the end of each step")


def test_ranges_of_another_thread_are_steps():
    maker = made_runs.Maker(["worker/train_step", "Optimizer.SGD", "Net"])
    for _ in range(14):
        maker.enter(3, thread=0)
        maker.leave()
        maker.enter(1, thread=1)
        maker.enter(2, thread=1)
        maker.leave()
        maker.leave()
        maker.alloc(700, 3, 5, 1)
    found = owners.leaks(maker.finish())
    assert found.at == "14 steps, from one worker/train_step to the next"
    assert [row.per_step for row in found.rows] == [1024]


def test_step_around_optimizers_that_overlap_is_found():
    maker = made_runs.Maker(["round", "Optimizer.SGD"])

    def put(enters, scope, thread):
        maker.put(Kind.SCOPE_ENTER if enters else Kind.SCOPE_LEAVE,
                  scope=scope, thread=thread)

    for i in range(26):
        put(True, 1, 2)
        for thread in (0, 1):
            put(True, 2, thread)
        for thread in (1, 0) if i % 2 else (0, 1):
            put(False, 2, thread)
        put(False, 1, 2)
    found = steps.of(maker.finish())
    assert found.what == "from one round to the next"
    assert len(found.moments) == 26


def test_marks_of_several_names_count_those_of_steps():
    maker = made_runs.Maker(
        [*(f"step {i}" for i in range(15)), "forward", "epoch 1", "epoch 2"])
    for i in range(15):
        if i in (0, 8):
            maker.put(Kind.MARK, scope=17 + i // 8)
        maker.put(Kind.MARK, scope=16)
        maker.put(Kind.MARK, scope=16)
        maker.put(Kind.MARK, scope=1 + i)
    found = steps.of(maker.finish())
    assert len(found.moments) == 15
    assert found.what == "from one mark step N to the next"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=40))
def test_ranges_are_those_of_a_stack_for_each_thread(events):
    maker = made_runs.Maker([f"s{i}" for i in range(40)])
    stacks, wanted = {}, {}
    for i, (enters, thread) in enumerate(events):
        stack = stacks.setdefault(thread, [])
        maker.put(Kind.SCOPE_ENTER if enters else Kind.SCOPE_LEAVE,
                  scope=1 + i, thread=thread)
        if enters:
            wanted[i] = (len(events), not stack)
            stack.append(i)
        elif stack:  # else it was entered before the recording
            begin = stack.pop()
            wanted[begin] = (i, wanted[begin][1])
    found = scope_ranges.ranges(maker.finish())
    assert list(zip(found["begin"].tolist(), zip(
        found["end"].tolist(), found["outer"].tolist()))) == sorted(
        wanted.items())
    assert (found["scope"] == found["begin"] + 1).all()


def test_constructed_optimizer_has_not_stepped():
    maker = made_runs.Maker(["Optimizer.Adam"])
    state, temporary = (model.CATEGORIES.index(name)
                        for name in ("optimizer_state", "temporary"))
    for enters, leaves in [(state, state), (state, temporary),
                           *[(temporary, temporary)] * 12]:
        maker.put(Kind.SCOPE_ENTER, scope=1, category=enters)
        maker.put(Kind.SCOPE_LEAVE, scope=1, category=leaves)
    assert len(steps.of(maker.finish()).moments) == 13


def test_numbers_of_layers_do_not_make_them_steps():
    maker = made_runs.Maker(["net.0", "net.1", "net.2"])
    for _ in range(4):
        for scope in (1, 2, 3):
            maker.enter(scope)
            maker.leave()
    assert len(steps.of(maker.finish()).moments) == 4


@pytest.mark.parametrize("name, is_step", [
    ("## step ##", True), ("train_step", True), ("ProfilerStep#", True),
    ("step 3 of epoch 2", True), ("[pl]run_training_batch", True),
    ("Iteration 5", True), ("outer/step", True), ("trainStep", True),
    ("Optimizer.step#SGD.step", False), ("net.batch_norm", False),
    ("StepNet", False), ("timestep_embedding", False), ("step.linear", False),
    ("step/forward", False), ("stepper", False)])
def test_name_of_a_step_is_known(name, is_step):
    maker = made_runs.Maker([name, "other"])
    for _ in range(12):
        for scope in (2, 2, 1):
            maker.enter(scope)
            maker.leave()
    assert (len(steps.of(maker.finish()).moments) == 12) == (
        is_step or name.startswith("Optimizer."))
