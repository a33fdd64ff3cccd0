# SPDX-License-Identifier: Apache-2.0
"""What a program under `run --live` says of itself is what report() says."""

import json
import os
import shutil
import tempfile

import pytest

from bazel import programs
from stratalloc._live import sample as samples

_PROGRAM = """
import json, os, sys, torch, stratalloc
from stratalloc._live import client
pid = os.getpid()
before = client.ask(pid, client.path_of(pid))
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
model = model.to("cuda:1")
stratalloc.evict(list(model[0].parameters()))
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda:1")
except torch.OutOfMemoryError:
    pass
child = os.fork()
if child == 0:
    os._exit(0 if client.socket_path.found() else 1)
os.waitpid(child, 0)
sample = client.ask(pid, client.path_of(pid))
report = stratalloc.report(1)
json.dump([before, sample, report, os.environ["STRATALLOC_CONF"]],
          open(sys.argv[1], "w"))
"""


@pytest.fixture(name="told", scope="module")
def _told():
    """(samples before CUDA and after, report(1), the setting, stderr)."""
    folder = tempfile.mkdtemp(prefix="live-", dir="/tmp")
    with open(f"{folder}/script.py", "w", encoding="utf-8") as file:
        file.write(_PROGRAM)
    done = programs.run(
        "-m", "stratalloc", "run", "--live", "--simulate", "32MiB",
        "--devices", "2", "--conf", "live:off,host_budget:16MiB",
        f"{folder}/script.py", f"{folder}/out",
        env={**os.environ, "XDG_RUNTIME_DIR": folder})
    assert done.returncode == 0, done.stderr
    assert os.listdir(f"{folder}/stratalloc") == [], "the end removes it"
    with open(f"{folder}/out", encoding="utf-8") as file:
        yield (*json.load(file), done.stderr)
    shutil.rmtree(folder)


def test_it_can_be_seen_before_it_uses_cuda(told):
    before = told[0]
    assert before["devices"] == [] and before["host"] is None
    assert before["simulated"].startswith("simulated CUDA: 2 devices")


def test_the_numbers_are_those_of_the_report(told):
    _, sample, report, *_ = told
    (one,) = sample["devices"]
    assert one["device"] == 1 and one["uuid"] is None
    assert one["limit"] == report["gpu_limit"] == 32 << 20
    for name in ("allocated", "reserved"):
        assert one[name] == report[name]["current"]
        assert one[f"{name}_peak"] == report[name]["peak"]
    assert one["live"] == report["live"] == (
        one["device_bytes"] + one["host_bytes"] + one["disk_bytes"])
    assert one["host_bytes"] >= 512 * 512 * 4
    assert one["moved"]["out"] >= 512 * 512 * 4 and one["moved"]["to_disk"] == 0
    assert one["stalls"] == report["tiers"]["stalls"] and one["ooms"] == 1
    assert sample["host"] == {"used": report["tiers"]["host_used"],
                              "budget": 16 << 20}


def test_layers_add_up_to_what_lives(told):
    _, sample, report, *_ = told
    (one,) = sample["devices"]
    assert one["other_layers"] == {"count": 0, "bytes": 0}
    assert sum(layer["bytes"] for layer in one["layers"]) == report["live"]
    layers = {layer["owner"]: layer for layer in one["layers"]}
    assert layers["Sequential.0"]["categories"]["parameter"] == (
        layers["Sequential.0"]["host"])
    for layer in layers.values():
        assert layer["bytes"] == sum(
            layer[tier] for tier in ("device", "host", "disk")) == sum(
            layer["categories"].values())
        assert layer["peak"] >= layer["bytes"]
    # Handles leave whole, and with them what lies beside.
    assert layers["Sequential.0"]["moved"] >= layers["Sequential.0"]["host"] > 0


def test_without_a_terminal_a_line_says_how_to_look(told):
    _, sample, _, conf, error = told
    line = (f"stratalloc: `stratalloc top --pid {sample['pid']}` shows this "
            "process while it runs")
    assert error.splitlines().count(line) == 1
    assert "\x1b" not in error
    # Those that it starts are seen, too.
    assert conf == "host_budget:16MiB,live:on"


def test_so_many_layers_are_told_and_the_rest_is_one(monkeypatch):
    count = samples.LAYERS + 50
    held = [{"owner": f"layer{i}", "category": "parameter", "live": i,
             "device": i, "host": 0, "disk": 0} for i in range(count)]
    held.append({**held[-1], "category": "gradient", "live": 5, "device": 0,
                 "host": 5})
    scope = samples._device_metrics.Scope(scope=7, most=99, evicted=3,
                                          restored=4)
    monkeypatch.setattr(samples._core, "scope_name", {7: "gone"}.get)
    told, others = samples._layers(held, [scope])
    assert len(told) == samples.LAYERS + 1
    assert others == {"count": 49, "bytes": sum(range(50))}
    by_name = {one["owner"]: one for one in told}
    assert by_name["gone"] == {
        "owner": "gone", "bytes": 0, "device": 0, "host": 0, "disk": 0,
        "peak": 99, "moved": 7, "categories": {}}
    last = by_name[f"layer{count - 1}"]
    assert (last["bytes"], last["host"], last["peak"], last["moved"]) == (
        count + 4, 5, None, None)
    assert last["categories"] == {"parameter": count - 1, "gradient": 5}
