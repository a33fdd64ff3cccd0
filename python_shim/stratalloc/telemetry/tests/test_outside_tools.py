# SPDX-License-Identifier: Apache-2.0
"""Our files in tools that are no Python: Debian's promtool lints the metrics,
Go's pprof adds the profiles up, to what the allocator counted.

A tool that is not installed is a failure: `./dev setup` installs it.
"""

import collections
import os
import re
import shutil
import subprocess
import sysconfig

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import formats  # noqa: E402
import made_runs  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc.telemetry import replay  # noqa: E402
from stratalloc.telemetry.exports import pprof  # noqa: E402

_TYPES = [name for name, _ in pprof.TYPES]


def tool(name, package):
    """The path of a program, which a package of Debian's has."""
    found = shutil.which(name) or shutil.which(
        name, path=sysconfig.get_path("scripts"))
    assert found, (f"there is no {name} here: it is of Debian's package "
                   f"{package}; run ./dev setup")
    return found


def said(command, tmp_path, **more):
    """Its stdout; go wants a place of its own to write to."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path),
             "GOCACHE": str(tmp_path / "go"), "PPROF_TMPDIR": str(tmp_path),
             "TZ": "UTC"}, **more)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recorded():
    """(a Run of a training, torch's counters of it)."""
    net = type("Seen", (nn.Sequential,), {})(
        *[nn.Linear(256, 256) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    with stratalloc.trace() as trace:
        for step in range(3):
            stratalloc.mark(f"step {step}")
            net(torch.randn(64, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        after = torch.cuda.memory_stats()
    return trace.run(), before, after


_MADE = {"story": made_runs.story, "hostile": made_runs.hostile,
         "devices": made_runs.devices, "random": lambda: made_runs.make(3, 300)[0],
         "late": lambda: made_runs.make(3, 300, first=150)[0],
         "nothing": made_runs.model.Run}


@pytest.fixture(params=[*_MADE, "recorded"])
def run(request):
    if request.param == "recorded":
        return request.getfixturevalue("recorded")[0]
    return _MADE[request.param]()


def test_promtool_finds_nothing_to_complain_of(run, tmp_path):
    path = formats.export(run, "metrics.prom", tmp_path)
    with open(path, "rb") as file:
        assert said([tool("promtool", "prometheus"), "check", "metrics"],
                    tmp_path, stdin=file) == ""


def test_promtool_would_complain(tmp_path):
    """Of a counter that is not called so, as ours could be."""
    path = formats.export(made_runs.story(), "metrics.prom", tmp_path)
    path.write_text(path.read_text().replace("stratalloc_ooms_total",
                                             "stratalloc_ooms"))
    with open(path, "rb") as file:
        done = subprocess.run(
            [tool("promtool", "prometheus"), "check", "metrics"], stdin=file,
            capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "_total" in done.stderr


def _pprof(tmp_path, path, *options):
    return said([tool("go", "golang-go"), "tool", "pprof", *options, path],
                tmp_path)


def _raw(text):
    """([values of a sample], [its labels]) of `pprof -raw`."""
    rows, labels = [], []
    text = text.partition("\nSamples:\n")[2].partition("\nLocations\n")[0]
    for line in text.split("\n")[1:]:
        found = re.fullmatch(r"((?: +\d+){4}):(?: \d+)+ *", line)
        if found:
            rows.append([int(one) for one in found[1].split()])
            labels.append("")
        else:
            labels[-1] += line + "\n"
    return rows, labels


def _sums(run):
    """(alloc_space, alloc_objects, inuse_space, inuse_objects)."""
    walked = [replay.Replay(run, one) for one in replay.devices(run)]
    churn = [one for some in walked for one in some.churn()]
    held = [one for some in walked for one in some.holders()]
    return [sum(one.bytes for one in churn), sum(one.count for one in churn),
            sum(one.bytes for one in held), sum(one.count for one in held)]


def test_gos_pprof_reads_every_sample_with_its_labels(run, tmp_path):
    path = formats.export(run, "profile.pb.gz", tmp_path)
    rows, labels = _raw(_pprof(tmp_path, path, "-raw"))
    assert [sum(column) for column in zip(*rows)] == (
        _sums(run) if rows else [])
    assert bool(rows) == bool(_sums(run)[0] + _sums(run)[2])
    for one in labels:
        for key in ("category:[", "device:[", "scope:["):
            assert key in one


@pytest.mark.parametrize("which", range(4))
def test_gos_top_and_traces_add_up(run, which, tmp_path):
    path = formats.export(run, "profile.pb.gz", tmp_path)
    name, unit = pprof.TYPES[which]
    options = [f"-sample_index={name}"] + ["-unit=B"] * (unit == "bytes")
    total = _sums(run)[which]
    top = _pprof(tmp_path, path, "-top", "-nodecount=100000",
                 "-nodefraction=0", *options)
    assert f"Type: {name}\n" in top
    flat = [int(one) for one in re.findall(r"^ *(\d+)B? +[\d.]+% ", top, re.M)]
    assert sum(flat) == total
    traces = _pprof(tmp_path, path, "-traces", *options)
    assert sum(int(one) for one in re.findall(
        r"^ *(\d+)B?   \S", traces, re.M)) == total


def test_the_sums_are_the_allocators_own(recorded, tmp_path):
    """What torch.cuda.memory_stats() told in the program."""
    run, before, after = recorded
    rows, labels = _raw(_pprof(tmp_path, formats.export(
        run, "profile.pb.gz", tmp_path), "-raw"))
    space, objects, held, _ = map(sum, zip(*rows))
    for key, value in (("allocated_bytes.all.allocated", space),
                       ("allocation.all.allocated", objects)):
        assert value == after[key] - before[key] > 0
    assert held == after["allocated_bytes.all.peak"]
    of = collections.Counter()
    for row, label in zip(rows, labels):
        of[re.search(r"category:\[(\w+)\]", label)[1]] += row[2]
    assert of["parameter"] == 4 * (256 * 256 + 256) * 4
    assert of["optimizer_state"] >= 2 * of["parameter"]
    text = formats.export(run, "metrics.prom", tmp_path).read_text()
    told = dict(re.findall(r'^stratalloc_(\w+)\{device="0"(?:,tier="device")?\} '
                           r'([\d.e+]+)$', text, re.M))
    for name, key in (("memory_allocated_bytes", "allocated_bytes.all.current"),
                      ("memory_reserved_bytes", "reserved_bytes.all.current"),
                      ("memory_peak_allocated_bytes",
                       "allocated_bytes.all.peak")):
        assert float(told[name]) == after[key], name
    assert float(told["allocated_bytes_total"]) == space
    assert float(told["allocations_total"]) == objects
