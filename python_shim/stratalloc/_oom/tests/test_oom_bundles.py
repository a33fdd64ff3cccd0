# SPDX-License-Identifier: Apache-2.0
"""Bundles of an out of memory: files, names, what is left out and why."""

import ctypes
import json
import os
import pickle
import stat
import subprocess
import sys

import pytest

from bazel import programs
from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402
from torch.cuda import _memory_viz  # noqa: E402

from ooms import (  # noqa: E402,F401
    ALWAYS, MIB, bundles, enabled, load, nothing_is_left, only, oom_dir,
    refused, said, use)
import stratalloc  # noqa: E402
from stratalloc.cli import command_line as cli  # noqa: E402
from stratalloc._oom import hook  # noqa: E402


def test_a_bundle_is_whole_and_its_owner_s_alone(oom_dir):
    with stratalloc.scope("<b>|x"):
        message = refused()
    folder = only(oom_dir)
    assert message.endswith(f" stratalloc wrote {folder}.")
    assert f"_{os.getpid()}_0_0" in folder
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    names = set(os.listdir(folder))
    assert names == ALWAYS
    assert {stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)
            for name in names} == {0o600}
    manifest = load(folder, "manifest.json")
    assert manifest["files"] == {
        name: os.path.getsize(os.path.join(folder, name))
        for name in names - {"manifest.json"}}
    assert manifest["verdict"] == "capacity"
    assert manifest["torch"] == torch.__version__ and manifest["driver"]
    assert load(folder, "settings.json")["host_budget"] == 1 << 30
    with open(os.path.join(folder, "report.md"), encoding="utf-8") as file:
        text = file.read()
    assert r"\<b\>\|x" in text and "<b>" not in text
    assert "ooms.py" in text  # the line that asked


def test_others_read_what_is_in_it(oom_dir, capsys):
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.model import Kind

    held = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    refused()
    folder = only(oom_dir)
    with open(os.path.join(folder, "snapshot.pickle"), "rb") as file:
        snapshot = pickle.load(file)
    assert "MiB" in _memory_viz.segsum(snapshot)
    run = recording.read(os.path.join(folder, "run.strata"))
    assert int((run.events["kind"] == Kind.OOM).sum()) >= 1
    assert cli.main(["oom", str(oom_dir)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Out of memory") and folder in shown
    assert cli.main(["oom", folder, "--json",
                     os.path.join(oom_dir, "out.json")]) == 0
    values = load(oom_dir, "out.json")
    assert values["verdict"]["kind"] == "capacity"
    assert values["manifest"]["files"]
    del held


def test_variables_are_told_by_name_alone(oom_dir, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    monkeypatch.setenv("CUDA_MY_SECRET", "a secret")
    refused()
    folder = only(oom_dir)
    assert load(folder, "env.json")["CUDA_LAUNCH_BLOCKING"] == "1"
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            assert b"a secret" not in file.read(), name


def test_what_the_recording_becomes(tmp_path):
    use(tmp_path)
    refused()
    folder = only(tmp_path)
    manifest = load(folder, "manifest.json")
    assert set(manifest["files"]) >= {
        "peak.speedscope.json", "trace.pftrace", "report.html"}, manifest
    assert not manifest["left_out"]
    assert load(folder, "peak.speedscope.json")["profiles"]
    assert not [name for name in os.listdir(folder) if "half" in name]


def test_what_changed_since_the_newest_mark(oom_dir):
    stratalloc.mark("older")
    stratalloc.mark("before it grew")
    with stratalloc.scope("grown"):
        kept = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    refused()
    with open(os.path.join(only(oom_dir), "report.md"),
              encoding="utf-8") as file:
        text = file.read().partition("## 7.")[2].partition("## 8.")[0]
    assert "Since before it grew" in text
    assert "| grown | unknown | +2 MiB |" in text
    del kept


def test_what_lacks_a_package_says_so(oom_dir):
    refused()
    hidden = "import sys; sys.modules.update(numpy=None); " \
             "from stratalloc._oom import exports; exports.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", hidden, only(oom_dir), "trace.pftrace"],
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "numpy" in json.loads(done.stdout)["trace.pftrace"]
    assert set(os.listdir(only(oom_dir))) == ALWAYS


def test_below_events_there_is_no_recording(oom_dir):
    before = stratalloc.telemetry_level("counters")
    refused()
    stratalloc.telemetry_level(before)
    folder = only(oom_dir)
    assert set(os.listdir(folder)) == ALWAYS - {"run.strata"}
    assert "below `events`" in load(
        folder, "manifest.json")["left_out"]["run.strata"]


def test_an_operator_that_is_refused_has_a_bundle_and_an_event(oom_dir):
    from stratalloc.telemetry import recording
    from stratalloc.telemetry.model import Kind

    class Layer(torch.nn.Module):
        def forward(self):
            return torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")

    with stratalloc.trace() as trace:
        parts = [torch.nn.Parameter(torch.ones(5 * MIB, device="cuda"))
                 for _ in range(2)]
        stratalloc.evict()
        kept = Layer()()
        before = int((trace.run().events["kind"] == Kind.OOM).sum())
        with pytest.raises(torch.OutOfMemoryError) as error:
            parts[0].data.copy_(parts[1].data)
        assert int((trace.run().events["kind"] == Kind.OOM).sum()) == before + 1
    folder = only(oom_dir)
    assert str(error.value).endswith(f" stratalloc wrote {folder}.")
    assert load(folder, "report.json")["operator"] == "aten::copy_"
    assert recording.read(os.path.join(folder, "run.strata")).events["kind"][
        -1] == Kind.OOM
    del kept, parts


def test_a_pin_that_is_refused(oom_dir):
    first, second = (torch.nn.Parameter(torch.ones(10 * MIB, device="cuda"))
                     for _ in range(2))
    stratalloc.pin(first)
    with pytest.raises(torch.OutOfMemoryError) as error:
        stratalloc.pin(second)
    folder = only(oom_dir)
    assert str(error.value).endswith(f" stratalloc wrote {folder}.")
    assert load(folder, "report.json")["operator"] == "pin()"
    stratalloc.unpin(first)


@pytest.mark.parametrize("letter, times", [("\u00e9", 900), ("\u65e5", 250),
                                           ("\U0001f525", 5000)])
def test_names_are_cut_between_characters(oom_dir, letter, times):
    name = letter * times
    limit = stratalloc.limit("4 MiB", scope=name)
    with stratalloc.scope(name):
        message = refused(8 * MIB)
    limit.remove()
    folder = only(oom_dir)
    assert message.endswith(f" stratalloc wrote {folder}.")
    sentence = load(folder, "report.json")["verdict"]["sentence"]
    assert letter * 5 + "…" + letter * 5 in sentence
    assert letter * 5 + "..." + letter * 5 in message
    assert len(sentence) < 400


def test_a_path_that_is_too_long_is_left_out():
    whole = " wrote /日."
    data = whole.encode()
    for room in range(30):
        assert hook._fitting(whole, room) == (
            data if room >= len(data) else b"")


@pytest.mark.parametrize("said", [b" caf\xc3", b"\xff\xfe", b"\xed\xa0\x80",
                                  b"a\0b", b"\xe6\x97\xa5" * 9999])
def test_a_listener_s_bytes_that_are_no_text(said):
    from stratalloc._native import core as _core
    from stratalloc._native import declarations

    @declarations.REFUSAL_LISTENER
    def listener(told, line, room):
        data = said[:room]
        ctypes.memmove(line, data, len(data))
        return len(data)

    _core.hear_refusals(listener)
    try:
        message = refused()
    finally:
        _core.hear_refusals(None)
    assert message.startswith("CUDA out of memory. ")
    assert "?" in message or "\u65e5" in message


_SECRET = """
import secret_module
import torch, stratalloc
stratalloc.on_oom(lambda report: print(report.verdict.sentence))
net = secret_module.SecretNet().cuda()
with stratalloc.scope("SecretScope/deep"):
    held = [torch.empty(4 << 20, dtype=torch.uint8, device="cuda")]
    stratalloc.mark("secret mark")
    held.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))
    try:
        torch.empty(90 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(error)
stratalloc.limit("9 MiB", scope="SecretScope")
with stratalloc.scope("SecretScope/deep"):
    try:
        torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(error)
"""


def test_what_is_recorded_without_names_has_a_bundle_without(tmp_path):
    (tmp_path / "secret_module.py").write_text(
        "import torch\nclass SecretNet(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.secret_weight = torch.nn.Parameter(torch.ones(9999))\n")
    (tmp_path / "secret.py").write_text(_SECRET)
    os.mkdir(tmp_path / "ooms")
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "64MiB", "--record",
        "r.strata", "--redact", "--conf", f"oom_dir:{tmp_path / 'ooms'}",
        "secret.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stratalloc wrote ") == 2, done.stdout
    assert "SecretScope is limited to 9 MiB" in done.stdout
    for name in bundles(tmp_path / "ooms"):
        folder = os.path.join(tmp_path, "ooms", name)
        manifest = load(folder, "manifest.json")
        assert manifest["redacted"] and "command" not in manifest
        assert set(manifest["left_out"]) >= {
            "env.json", "stats.json", "snapshot.pickle"}
        assert set(manifest["files"]) >= {"report.md", "report.json",
                                          "run.strata", "trace.pftrace"}
        for file in os.listdir(folder):
            with open(os.path.join(folder, file), "rb") as opened:
                text = opened.read().lower()
            for word in (b"secret", os.fsencode(tmp_path).lower()):
                assert word not in text, (file, word)
        report = load(folder, "report.json")
        assert report["owner"].count("#") == 2, "a path of two parts"
        assert cli.main(["oom", folder]) == 0
    kinds = {load(os.path.join(tmp_path, "ooms", name), "report.json")[
        "verdict"]["kind"] for name in bundles(tmp_path / "ooms")}
    assert kinds == {"capacity", "limit"}
