# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.memory._dump_snapshot, opened by torch.cuda._memory_viz."""

import base64
import contextlib
import io
import os
import pickle
import re
import runpy
import sys
import tempfile

import torch
from torch.cuda import _memory_viz

MIB = 1 << 20
# What the program did. Segments are the allocator's own affair.
EVENTS = ("alloc", "free_requested", "free_completed", "oom")


def _keep(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def _work():
    """Lives, is freed, waits for another stream."""
    kept = [_keep(3), _keep(12), torch.ones(1000, device="cuda")]
    gone = [_keep(5) for _ in range(3)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept.append(_keep(1))
        gone[1].record_stream(side)
    del gone
    return kept


def _command(*arguments):
    """What `python -m torch.cuda._memory_viz ...` prints."""
    before, printed = sys.argv, io.StringIO()
    sys.argv = ["_memory_viz", *arguments]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def _in_use(flames):
    """Bytes per stack of what a flame graph shows as not free."""
    bytes_of = {}
    for line in flames.splitlines():
        stack, _, size = line.rpartition(" ")
        if ";active_" in stack and "<gaps>" not in stack:
            # Streams are numbered by their addresses.
            stack = re.sub(r"stream_[1-9]\d*", "stream", stack)
            stack = re.sub(r"seg_\d+", "seg", stack)
            bytes_of[stack] = bytes_of.get(stack, 0) + int(size)
    return bytes_of


def _plotted(path):
    """The snapshot within a page."""
    text = _read(path)
    assert "MemoryViz.js" in text
    kind = re.search(r"add_local_files\(local_files, '([^']*)'", text)
    packed = re.search(r'"base64": "([^"]*)"', text)
    return [kind.group(1),
            _happened(pickle.loads(base64.b64decode(packed.group(1))))]


def _happened(snapshot):
    return [
        [each["action"], each["size"],
         each["frames"][0]["name"] if each["frames"] else ""]
        for each in snapshot["device_traces"][0] if each["action"] in EVENTS]


def _keys(snapshot):
    """Which keys there are at each level of a snapshot."""
    blocks = [b for s in snapshot["segments"] for b in s["blocks"]]
    used = [b for b in blocks if b["state"] != "inactive"]
    traces = {}
    for each in snapshot["device_traces"][0]:
        if each["action"] in EVENTS:
            traces.setdefault(each["action"], set()).update(each)
    return {
        "snapshot": sorted(snapshot),
        "segment": sorted(set().union(*snapshot["segments"])),
        "block": sorted(set().union(*used)),
        "settings": sorted(snapshot["allocator_settings"]),
        "traces": {name: sorted(keys) for name, keys in traces.items()},
    }


def _lines(trace):
    """The program's lines of `trace`, without names, places and what the
    device had left."""
    kinds = (r"\w+ = .*:(.*)\]$", r"del .* # (.*)", r"# free completed .* (\S+)$",
             r"raise OutOfMemoryError # (\S+) requested")
    return [
        [kind, found.group(1)]
        for line in trace.splitlines() for kind, pattern in enumerate(kinds)
        if (found := re.match(pattern, line))]


def _compare(before, after):
    """The command hands its function dictionaries where that takes lists, in
    every allocator's name; the function itself works."""
    try:
        _command("compare", before, after)
        return "works"
    except TypeError as error:
        command = str(error)
    segments = []
    for path in (before, after):
        with open(path, "rb") as file:
            segments.append(pickle.load(file)["segments"])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        flames = _memory_viz.compare(*segments)
    lines = printed.getvalue().splitlines()
    return [command, [line.split(" = ")[0] for line in lines],
            "only_after;stream_" in flames]


def memory_viz():
    """Every command on two snapshots, and what each of them shows."""
    record = torch.cuda.memory._record_memory_history
    record("all", context="all", stacks="python")
    with tempfile.TemporaryDirectory() as folder:
        before, after, out = (
            os.path.join(folder, name)
            for name in ("before.pickle", "after.pickle", "out"))
        # Before anything lives: with tiering, it would be evicted first.
        with contextlib.suppress(torch.OutOfMemoryError):
            _keep(1 << 20)
        first = _keep(2)
        torch.cuda.memory._dump_snapshot(before)
        kept = _work()
        torch.cuda.memory._dump_snapshot(after)
        record(None)
        with open(after, "rb") as file:
            snapshot = pickle.load(file)
        saw = {"keys": _keys(snapshot), "happened": _happened(snapshot)}
        stats = _command("stats", after)
        saw["stats"] = re.findall("total_allocated: .*", stats)
        saw["trace"] = _lines(_command("trace", after))
        for name in ("memory", "segments"):
            _command(name, after, "-o", out)
            saw[name] = _in_use(_read(out))
        saw["compare"] = _compare(before, after)
        for name, *more in (
                ("trace_plot",), ("trace_plot", "-s"), ("trace_plot", "-f"),
                ("trace_plot", "-d", "0"), ("segment_plot",)):
            _command(name, after, *more, "-o", out)
            saw[" ".join([name, *more])] = _plotted(out)
    del first, kept
    return saw
