# SPDX-License-Identifier: Apache-2.0
"""Metrics of several ranks merged into one, and what cannot be merged."""

import json
import os
import re
import socket
import stat

import pytest

from bazel import programs
import stratalloc
from stratalloc.telemetry import ranks
from stratalloc.telemetry.errors import TelemetryError


def _command(*arguments, code=0, **environment):
    done = programs.run("-m", "stratalloc", *map(str, arguments),
                        env={**os.environ, **environment})
    assert done.returncode == code, done.stdout + done.stderr
    return done


_PROGRAM = """
import re, sys, torch, urllib.request
import stratalloc
kept = torch.ones(1 << 20, device="cuda")
stratalloc.write_metrics(sys.argv[1])
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Of two ranks of a launcher."""
    tmp_path = tmp_path_factory.mktemp("ranks")
    script = tmp_path / "script.py"
    script.write_text(_PROGRAM)
    paths = []
    for rank, (place, address) in enumerate((
            (0, "127.0.0.1"), ("127.0.0.2:0", "127.0.0.2"))):
        paths.append(tmp_path / f"{rank}.prom")
        done = _command("run", "--simulate", "64MiB", "--metrics", place,
                        script, paths[-1], RANK=str(rank))
        (line,) = [one for one in done.stderr.splitlines() if "metrics" in one]
        assert re.fullmatch(f"stratalloc: metrics at http://{address}:"
                            r"\d+/metrics", line)
    return paths


def test_ranks_are_merged_into_one(files, tmp_path):
    text = _command("metrics", *files).stdout
    lines = [one for one in text.splitlines()
             if one.startswith("stratalloc_memory_allocated_bytes{")
             and 'tier="device"' in one]
    assert sorted(re.search(r'rank="(\d)"', one)[1] for one in lines) == [
        "0", "1"]
    assert {one.split()[-1] for one in lines} == {"4.194304e+06"}
    assert text.count("# TYPE stratalloc_memory_allocated_bytes") == 1
    out = tmp_path / "all.prom"
    said = _command("metrics", *files, "-o", out, "--json", "-")
    assert out.read_text() == text
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    rows = json.loads(said.stdout)["metrics"]
    assert sum(one["value"] for one in rows if one["name"] ==
               "stratalloc_memory_allocated_bytes"
               and one["labels"]["tier"] == "device") == 2 << 22
    # A file of ranks is a source, too, and so is a process that serves.
    with stratalloc.serve_metrics() as server:
        text = _command("metrics", out, f"x-9={server.url}").stdout
    assert 'stratalloc_build_info{rank="x-9"' in text
    assert 'rank="1"' in text


def test_sources_that_cannot_be_merged_are_said(files, tmp_path):
    said = _command("metrics", files[0], files[0], code=1).stderr
    assert f"{files[0]} and {files[0]} both tell of rank 0" in said
    assert f"0={files[0]} 1={files[0]}" in said
    odd = tmp_path / "odd.prom"
    for raw, word in ((b"\xff\xfe", "no exposition"), (b"a b c d", "no expos"),
                      (b'a{b="', "no exposition"), (b"a{", "no exposition"),
                      (b"# TYPE stratalloc_build_info counter\n"
                       b"stratalloc_build_info_total 1\n", "")):
        odd.write_bytes(raw)
        if word:
            assert word in _command("metrics", odd, code=1).stderr, raw
    assert "no file" in _command("metrics", tmp_path / "none.prom",
                                 code=2).stderr
    assert "does not answer" in _command(
        "metrics", "http://127.0.0.1:1/metrics", code=1).stderr
    _command("metrics", code=2)
    assert "is read" in _command("metrics", files[0], "-o", files[0],
                                 code=2).stderr


def test_two_of_no_rank_are_not_taken_for_one(tmp_path):
    paths = [tmp_path / "a.prom", tmp_path / "b.prom"]
    for path in paths:
        stratalloc.write_metrics(path)
    with pytest.raises(TelemetryError, match="RANK was not set"):
        ranks.merged(map(str, paths))
    found = ranks.merged(f"{i}={path}" for i, path in enumerate(paths))
    assert [one.labels["rank"] for one in found[0].samples] == ["0", "1"]


def test_run_refuses_a_port_before_the_program_starts(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('started')")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = _command("run", "--simulate", "64MiB", "--metrics", port, script,
                        code=2)
        assert done.stdout == "" and f"port {port} of 127.0.0.1" in done.stderr
        # A rank of torchrun has the port behind it.
        done = _command("run", "--simulate", "64MiB", "--metrics", port - 2,
                        script, code=2, LOCAL_RANK="2")
        assert f"port {port} of" in done.stderr
    for odd in ("x", "-1", "70000", "1.5"):
        assert "is not [ADDRESS:]PORT" in _command(
            "run", f"--metrics={odd}", script, code=2).stderr
    assert "torch's allocator" in _command(
        "run", "--simulate", "64MiB", "--metrics", 0, "--allocator", "native",
        script, code=2).stderr
