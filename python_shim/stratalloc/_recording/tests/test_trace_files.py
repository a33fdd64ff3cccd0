# SPDX-License-Identifier: Apache-2.0
"""Files and pictures of trace() and dump(): formats, names, levels, redaction."""

import re
import sys
import xml.etree.ElementTree

import pytest

from stratalloc import simulate

simulate.load("48MiB")

import torch  # noqa: E402

from traced_tensors import MIB, holds, of_kind, tensor  # noqa: E402
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc.sizes import format_size  # noqa: E402
from stratalloc.telemetry import formats, recording  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402


def test_a_file_is_the_same_run(tmp_path):
    path = tmp_path / "part.strata"

    @stratalloc.trace(path)
    def part():
        return tensor(1536)

    part()
    run = recording.read(str(path))
    holds(run)
    assert of_kind(run, Kind.ALLOC)["bytes"].tolist() == [1536]
    assert (path.stat().st_mode & 0o777) == 0o600
    assert run.about["torch"] == str(torch.__version__)


def test_its_end_says_the_format_as_dumps_does(tmp_path):
    for wrong in ("x.foo", "x", tmp_path / "x.strata.bak"):
        for refuses in (stratalloc.trace, stratalloc.dump):
            with pytest.raises(ValueError, match="ends like no format"):
                refuses(wrong)
    with stratalloc.trace(tmp_path / "x.csv") as trace:
        tensor(1536)
    assert formats.check("csv", tmp_path / "x.csv") == []
    assert ",alloc," in (tmp_path / "x.csv").read_text()
    assert of_kind(trace.run(), Kind.ALLOC)["bytes"].tolist() == [1536]
    (tmp_path / "goes").mkdir()
    with pytest.raises(RuntimeError, match="cannot be written"):
        with stratalloc.trace(tmp_path / "goes" / "x.csv") as trace:
            tensor(512)
            (tmp_path / "goes").rmdir()
    assert of_kind(trace.run(), Kind.ALLOC)["bytes"].tolist() == [512]


def test_a_trace_is_shown(tmp_path):
    """As a table, and as a picture whose peak is torch's."""
    trace = stratalloc.trace()
    assert "nothing yet" in str(trace) and "of nothing" in repr(trace)
    torch.cuda.reset_peak_memory_stats()
    with trace:
        assert str(trace) == "this trace() is being recorded"
        with stratalloc.scope("<b>evil", category="buffer"):
            kept = [tensor(3 * MIB), tensor(2 * MIB)]
            stratalloc.mark("<i>mark")
        del kept
    peak = torch.cuda.max_memory_allocated()
    assert re.search(r"^device 0", str(trace), re.MULTILINE)
    html = trace._repr_html_()
    (drawn,) = re.findall("<svg.*?</svg>", html)
    root = xml.etree.ElementTree.fromstring(drawn)
    texts = [element.text for element in root.iter() if element.text]
    assert f"most {format_size(peak)}" in texts and "<i>mark" in texts
    assert "<b>evil" not in html and "<i>mark" not in html
    assert "&lt;i&gt;mark" in html
    assert re.fullmatch(r"<stratalloc\.Trace of \d+ events, [\d.]+ s>",
                        repr(trace))
    with trace:
        tensor(512)
    assert "&lt;i&gt;mark" not in trace._repr_html_()  # it is another one
    written = stratalloc.trace(tmp_path / "r.strata")
    with written:
        tensor(512)
    (tmp_path / "r.strata").write_bytes(b"another")
    assert "cannot be read" in str(written)


@pytest.mark.parametrize("name", ["no/x.strata", "no/x.csv"])
def test_what_cannot_be_written_is_said_before_it_is_recorded(tmp_path, name):
    ran = []
    with pytest.raises(RuntimeError, match="cannot be written"):
        with stratalloc.trace(tmp_path / name):
            ran.append("the program")
    assert not ran
    stratalloc.trace(tmp_path / name)  # not yet entered


def test_an_old_file_of_its_name_is_not_its_run(tmp_path):
    path = tmp_path / "r.strata"
    with stratalloc.trace(path):
        tensor()
    trace = stratalloc.trace(path)
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        trace.run()
    trace(lambda: tensor(512))()  # a decorator's run is that of the last call
    assert of_kind(trace.run(), Kind.ALLOC)["bytes"].tolist() == [512]
    trace(lambda: tensor(1024))()
    assert of_kind(trace.run(), Kind.ALLOC)["bytes"].tolist() == [1024]


def test_redacted_has_no_names(tmp_path):
    path = tmp_path / "r.strata"
    with stratalloc.trace(path, redact=True):
        with stratalloc.scope("TopSecretLayer"):
            tensor()
    assert b"TopSecretLayer" not in path.read_bytes()
    run = recording.read(str(path))
    holds(run)
    assert run.redacted and not run.about


def test_redacted_keeps_its_level(tmp_path):
    stratalloc.telemetry_level("full")
    try:
        with stratalloc.trace(tmp_path / "r.strata", redact=True):
            tensor()
    finally:
        stratalloc.telemetry_level("counters")
    assert recording.read(str(tmp_path / "r.strata")).level == "full"


def test_an_argument_may_be_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x.py", "bad\udcff", "\U0001f600"])
    with stratalloc.trace(tmp_path / "r.strata"):
        tensor()
    run = recording.read(str(tmp_path / "r.strata"))
    holds(run)
    assert run.about["command"] == ["x.py", "bad?", "\U0001f600"]


def test_an_exception_inside_still_ends_it(tmp_path):
    trace = stratalloc.trace(tmp_path / "e.strata")
    with pytest.raises(KeyError):
        with trace:
            tensor(512)
            raise KeyError
    assert of_kind(trace.run(), Kind.ALLOC)["bytes"].tolist() == [512]
    with pytest.raises(RuntimeError, match="cannot be written"):
        with stratalloc.trace(tmp_path / "no" / "folder.strata"):
            pass


def test_levels_are_switched_while_the_program_runs(tmp_path):
    """Events and lines come and go; what dump() writes is what was on."""
    assert stratalloc.telemetry_level() == "counters"
    with pytest.raises(RuntimeError, match="no events are recorded"):
        stratalloc.dump(tmp_path / "x.strata")
    with pytest.raises(ValueError, match="no telemetry level 'loud'"):
        stratalloc.telemetry_level("loud")
    tensor(1 << 12)
    assert stratalloc.telemetry_level("callsites") == "counters"
    kept = [tensor(4 * MIB) for _ in range(4)]
    rows = stratalloc.holders(by="site").rows
    assert any("traced_tensors.py" in row.name for row in rows)
    stratalloc.dump(tmp_path / "a.strata")
    run = recording.read(str(tmp_path / "a.strata"))
    holds(run)
    made = of_kind(run, Kind.ALLOC)
    assert made["bytes"].tolist() == [4 * MIB] * 4
    assert "traced_tensors.py" in run.sites[int(made["site"].max())].file
    for ending in (".pickle", ".json", ".speedscope.json", ".trace.json",
                   ".csv"):
        stratalloc.dump(tmp_path / ("a" + ending))
        assert (tmp_path / ("a" + ending)).stat().st_size > 100
    with pytest.raises(RuntimeError, match="no/x.csv cannot be written"):
        stratalloc.dump(tmp_path / "no" / "x.csv")
    with pytest.raises(ValueError, match="ends like no format"):
        stratalloc.dump(tmp_path / "a.xyz")
    assert stratalloc.telemetry_level("counters") == "callsites"
    with pytest.raises(RuntimeError, match="no events are recorded"):
        stratalloc.dump(tmp_path / "x.strata")
    assert not any("traced_tensors.py" in row.name
                   for row in stratalloc.holders(by="site").rows)
    del kept
