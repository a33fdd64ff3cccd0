# SPDX-License-Identifier: Apache-2.0
"""Files of every format, and recordings of everything there is, damaged at
random: readers, checks, answers and exporters tell what is wrong, raise nothing
else, and keep nothing.

STRATALLOC_FUZZ_INPUTS says how many of each kind (//tests/system/long:fuzz_files); `python
test_fuzz.py COUNT SEED` does as many as one likes.
"""

import functools
import gc
import json
import os
import pathlib
import pickle
import random
import sys
import tempfile

import pytest

import damage
import formats
import made_runs
import recorded_seeds
import torch_shapes
from stratalloc.telemetry import files, identities
from stratalloc.telemetry.analysis import fit, owners, summary
from stratalloc.telemetry.errors import TelemetryError
from stratalloc.telemetry.report import data, page

_COUNT = int(os.environ.get("STRATALLOC_FUZZ_INPUTS", "100"))
_CHECKED = sorted(formats.WRITERS)
_RECORDED = [f"{name}.strata" for name in recorded_seeds.NAMES]
_KINDS = ["torch.pickle", "torch.json", *_CHECKED, *_RECORDED]
_READ = ["torch.pickle", "torch.json", *_RECORDED]
_ANSWERS = {
    "summary": lambda run: summary.summary(run).text(),
    "tree": lambda run: owners.tree(run, at="end").text(),
    "peak": lambda run: owners.peak(run, by="site").text(),
    "leaks": lambda run: owners.leaks(run).text(),
    "report": lambda run: page.page(data.data([("run", run)])),
    **{f"fit {policy}": lambda run, policy=policy: fit.fit(
        run, 24 << 20, policy=policy).text() for policy in fit.POLICIES}}
# OpenTelemetry's SDK keeps ten objects of each provider for the process's life;
# what it is told is what Prometheus is told.
_USES = [*_ANSWERS, *(one for one in formats.WRITERS if one != "otel.json")]


@functools.cache
def _whole(name):
    if name in _RECORDED:
        return recorded_seeds.seeds()[name.removesuffix(".strata")]
    if name == "torch.pickle":
        return pickle.dumps(torch_shapes.snapshot(), 4)
    if name == "torch.json":
        return json.dumps(torch_shapes.snapshot()).encode()
    with tempfile.TemporaryDirectory() as folder:
        return formats.export(made_runs.story(), name,
                              pathlib.Path(folder)).read_bytes()


def _use(run, what, folder):
    if what in _ANSWERS:
        _ANSWERS[what](run)
    else:
        formats.export(run, what, folder)


def _read(path, chance):
    """A damaged file is read and answers, or is refused with a reason."""
    try:
        run = files.load(path)
        identities.check(run)
        if chance.random() < .3:  # of all that a run is used for, which is slow
            _use(run, chance.choice(_USES), path.parent)
    except TelemetryError as error:
        assert 10 < len(str(error)) < 700


def _one(path, raw, chance):
    path.write_bytes(raw)
    if path.name in _CHECKED:
        assert isinstance(formats.wrong(path), list)
    if path.name not in _CHECKED or "snapshot" in path.name:
        _read(path, chance)


def _answers(path, raw, chance):
    """As _read, of a file that is damaged nowhere: what is written is fine."""
    path.write_bytes(raw)
    try:
        run = files.load(path)
    except TelemetryError as error:
        assert 10 < len(str(error)) < 700
        return
    identities.check(run)
    for what in chance.sample(_USES, 4):
        _use(run, what, path.parent)
        if what in _CHECKED:
            assert formats.wrong(path.parent / what) == []
            if "snapshot" in what:
                files.load(path.parent / what)


def fuzz(name, count, seed, damaged=None, one=None):
    chance = random.Random(f"{name} {seed}")
    raw = _whole(name)
    damaged = damaged or (damage.recording if name in _RECORDED
                          else damage.damaged)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        for _ in range(count):
            broken = damaged(raw, chance)
            try:
                (one or _one)(path, broken, chance)
            except Exception:
                kept = pathlib.Path(tempfile.gettempdir()) / ("fuzzed-" + name)
                kept.write_bytes(broken)
                print(f"the file is kept as {kept}", file=sys.stderr)
                raise


def _memory():
    """Bytes of the process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", _KINDS)
def test_what_is_not_damaged_is_fine(name, tmp_path):
    if name in _CHECKED and "snapshot" not in name:
        return
    path = tmp_path / name
    path.write_bytes(_whole(name))
    assert identities.check(files.load(path)) == []


@pytest.fixture(scope="module", name="used")
def _used(tmp_path_factory):
    """Whatever the process makes at the first use of each kind, and keeps."""
    for what in _USES:
        _use(made_runs.story(), what, tmp_path_factory.mktemp("used"))


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("name", _KINDS)
def test_a_damaged_file_is_told_and_nothing_is_kept(name):
    fuzz(name, min(_COUNT, 50), 0)
    gc.collect()
    before, memory = len(gc.get_objects()), _memory()
    fuzz(name, _COUNT, 1)
    gc.collect()
    assert len(gc.get_objects()) < before + 2000
    assert _memory() < memory + (64 << 20)


@pytest.mark.parametrize("name", _READ)
def test_keys_that_nobody_writes_are_told_or_refused(name):
    fuzz(name, min(_COUNT // 4, 100), 2, damage.odd, _answers)


if __name__ == "__main__":
    for one in _KINDS:
        fuzz(one, int(sys.argv[1]), int(sys.argv[2]))
        print(one, "held", flush=True)
