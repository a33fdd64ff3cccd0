# SPDX-License-Identifier: Apache-2.0
"""What PyTorch reports of memory: its profiler and torch.accelerator."""

import json
import os
import tempfile

import torch
from consumer import counts
from consumer import fresh
from torch import nn
from torch.profiler import ProfilerActivity

MIB = 1 << 20


def _train(model, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(32, 256, device="cuda")).sum().backward()
        optimizer.step()


def _model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 64)
    ).cuda()


def _timeline(profile):
    """How many steps the timeline has. Which of two operators at one time comes
    first, and so their categories, differs from run to run."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "timeline.json")
        profile.export_memory_timeline(path, device="cuda:0")
        with open(path, encoding="utf-8") as file:
            _, sizes = json.load(file)
    return len(sizes)


def profiler():
    """profile_memory: sizes per operator, every event, a timeline."""
    model = _model()
    _train(model)  # what libraries keep is there
    with torch.profiler.profile(
            activities=[ProfilerActivity.CPU], profile_memory=True,
            record_shapes=True, with_stack=True) as profile:
        _train(model)
    operators = {
        each.key: [each.count, each.device_memory_usage,
                   each.self_device_memory_usage, each.cpu_memory_usage,
                   each.self_cpu_memory_usage]
        for each in profile.key_averages()}
    events = [
        event.nbytes()
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
        and event.device_type() == torch.autograd.DeviceType.CUDA]
    table = profile.key_averages().table(
        sort_by="self_device_memory_usage", row_limit=5)
    return {"operators": operators, "events": events,
            "has_timeline": _timeline(profile) > 20,
            "has_table": "aten::" in table}


def accelerator():
    """torch.accelerator.memory_*: the numbers of torch.cuda."""
    accelerator = torch.accelerator
    seen = []

    def look():
        stats = accelerator.memory_stats()
        of_cuda = torch.cuda.memory_stats()
        # Counted from 2.12 on, and shown by torch.cuda alone.
        assert of_cuda.pop("num_oom_rejections", 0) == 0
        assert stats == of_cuda
        reserved = accelerator.memory_reserved()
        assert reserved == torch.cuda.memory_reserved()
        assert reserved >= accelerator.memory_allocated()
        assert accelerator.max_memory_reserved() >= reserved
        free, total = accelerator.get_memory_info()
        assert (free, total) == torch.cuda.mem_get_info()
        assert free == total - reserved
        seen.append([
            accelerator.memory_allocated(), accelerator.max_memory_allocated(),
            counts(stats)])

    fresh()
    look()
    first = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    second = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    look()
    del first
    accelerator.reset_peak_memory_stats()
    look()
    accelerator.reset_accumulated_memory_stats()
    look()
    accelerator.empty_cache()
    seen.append(accelerator.memory_reserved() <= 20 * MIB)
    del second  # with tiering, memory would be evicted first
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        seen.append(str(error)[:60])
    look()
    return seen
