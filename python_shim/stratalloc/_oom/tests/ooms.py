# SPDX-License-Identifier: Apache-2.0
"""Out of memory on the simulated device, and the bundles that it writes.

Import it after the device; `enabled` and `nothing_is_left` are fixtures that
run by themselves, `oom_dir` is one.
"""

import json
import os

import pytest
import torch

import stratalloc
from stratalloc._oom import bundle, hook

MIB = 1 << 20

# What a bundle has at the level `events`, whatever packages there are.
ALWAYS = {"report.md", "report.json", "settings.json", "env.json",
           "run.strata", "stats.json", "snapshot.pickle", "manifest.json"}


@pytest.fixture(scope="module", autouse=True)
def enabled():
    assert stratalloc.enable(host_budget="1GiB", disk_budget=0,
                             telemetry="events")
    torch.cuda.init()


@pytest.fixture(autouse=True)
def nothing_is_left():
    hook._state.sites.clear()
    hook._state.dumps = 0
    yield
    hook.use(stratalloc.config())
    assert not hook._state.callbacks and not hook._state.attached


@pytest.fixture
def oom_dir(tmp_path, monkeypatch):
    # Of what a child makes there is a test of its own.
    monkeypatch.setattr(bundle, "_CONVERTED", ())
    use(tmp_path)
    return tmp_path


def use(directory, **bounds):
    hook.use(stratalloc.config().replace(oom_dir=str(directory), **bounds))


def refused(size=100 * MIB):
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    return str(error.value)


def bundles(directory):
    return sorted(name for name in os.listdir(directory))


def only(directory):
    (name,) = bundles(directory)
    return os.path.join(directory, name)


def load(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def said(caplog):
    return [record.getMessage() for record in caplog.records
            if record.name == "stratalloc"]
