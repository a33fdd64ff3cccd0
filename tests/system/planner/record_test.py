# SPDX-License-Identifier: Apache-2.0
"""The recorder, on a training step whose pages are known."""

from tests.system.planner import record, trace

NOW = record.load()

import torch  # noqa: E402: after the device


def _record(program):
    recorder = record.Recorder(torch, NOW)
    program(recorder)
    return [line.split(" ") for line in recorder.text("test").splitlines()]


def _pages(line):
    """Of an operator: its pages by access."""
    return {kind: trace.pages(spelled)
            for kind, spelled in zip(line[2::2], line[3::2])}


def _step(recorder, optimizer=torch.optim.SGD, **options):
    """Two weights of two pages each; two cycles of a training step."""
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 1024, bias=False),
        torch.nn.Linear(1024, 1024, bias=False)).cuda()
    recorder.add(model)
    chosen = optimizer(model.parameters(), **options)
    x = torch.zeros(1024, 1024, device="cuda")
    with recorder.recorder_mode:
        for _ in range(2):
            loss = model(x).sum()
            with recorder.backward():
                loss.backward()
            with recorder.step(chosen):
                chosen.step()
            chosen.zero_grad()
            recorder.cycle()


def _cycle(lines, number=1):
    ends = [i for i, line in enumerate(lines) if line == ["c"]]
    return lines[ends[number - 1] + 1:ends[number]]


def test_training_step_reads_makes_and_frees_its_pages():
    lines = _record(lambda recorder: _step(recorder, lr=0.1, foreach=False))
    cycle = _cycle(lines)
    operators = [_pages(line) for line in cycle if line[0] == "o"]
    made = [page for used in operators for page in used.get("n", ())]
    freed = [page for line in cycle if line[0] == "f"
             for page in trace.pages(line[1])]
    assert len(made) == 4, "the gradients alone, since activations stay"
    assert sorted(freed) == sorted(made)
    written = {page for used in operators for page in used.get("w", ())}
    assert len(written - {0}) == 4, "the weights; the loss is on page 0"
    assert not written & set(made)
    assert lines[0] == ["b", "test", "9"], "weights, gradients and the loss"


def test_list_operator_counts_as_one_per_element():
    lines = _record(lambda recorder: _step(
        recorder, torch.optim.AdamW, fused=True))
    steps = [_pages(line) for line in _cycle(lines) if line[0] == "o"]
    assert max(len(used.get("w", ())) for used in steps) <= 9, (
        "a weight, its moments, its gradient and a page of the step count")


def test_scope_events_name_forward_backward_and_step():
    lines = _record(lambda recorder: _step(recorder, lr=0.1))
    events = [int(line[1]) % 4 for line in _cycle(lines) if line[0] == "s"]
    assert events.count(2) == 3, "two layers and the model run backward"
    assert events.count(0) == events.count(1) == 4, "and the optimizer's step"


def test_operator_takes_time():
    lines = _record(lambda recorder: _step(recorder, lr=0.1))
    assert sum(int(line[1]) for line in _cycle(lines) if line[0] == "o") > 0


def test_failed_forward_leaves_its_scope():
    def program(recorder):
        model = torch.nn.Linear(1024, 1024).cuda()
        recorder.add(model)
        with recorder.recorder_mode:
            try:
                model(torch.zeros(3, 3, device="cuda"))
            except RuntimeError:
                pass
            kept = torch.zeros(1024, 1024, device="cuda")
            kept.add_(1)
            recorder.cycle()

    lines = _record(program)
    assert any("w" in _pages(line) for line in lines if line[0] == "o")
