# SPDX-License-Identifier: Apache-2.0
"""What holds of every exporter: its check finds nothing, names stay names,
files are the user's alone and whole or not there."""

import builtins
import functools
import gzip
import os
import pathlib
import pickle
import stat
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tensorboard.backend.event_processing.event_file_loader import (
    RawEventFileLoader)
from tensorboard.compat.proto.event_pb2 import Event

import formats
import made_runs
import told
from stratalloc.telemetry import model
from stratalloc.telemetry.errors import MissingPackageError
from stratalloc.telemetry.exports.messages import messages
from stratalloc.telemetry.exports.target import target, zipped
from stratalloc.telemetry.formats import FORMATS

_NAMES = sorted(formats.WRITERS)
_ANY = settings(max_examples=25, deadline=None, suppress_health_check=[
    HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", _NAMES)
@_ANY
@given(seed=st.integers(0, 1 << 30), steps=st.integers(0, 120),
       first=st.integers(0, 60))
def test_of_any_run_the_check_finds_nothing(name, tmp_path, seed, steps, first):
    run, _ = made_runs.make(seed, steps, first)
    assert formats.wrong(formats.export(run, name, tmp_path)) == []


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("which", ["story", "hostile", "nothing", "devices",
                                   "no end", "no devices"])
def test_runs_of_every_kind_are_written(name, which, tmp_path):
    run = made_runs.hostile() if which == "hostile" else made_runs.story()
    if which == "nothing":
        run = model.Run()
    elif which == "no end":
        run.devices[0].end = None
    elif which == "no devices":
        run.devices = []
        run.events = run.events[run.events["kind"] >= 7]
    elif which == "devices":
        run = made_runs.devices()
    assert formats.wrong(formats.export(run, name, tmp_path)) == []


@pytest.mark.parametrize("name", _NAMES)
def test_every_file_says_what_was_dropped_and_what_recording_cost(name,
                                                                  tmp_path):
    run = made_runs.story()
    run.dropped, run.overhead = 424243, 5151515
    path = formats.export(run, name, tmp_path)
    assert formats.wrong(path) == []
    said = _words(path)
    assert "424243" in said and "5151515" in said


def _words(path):
    """What is in a file of any format, as text."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    if path.suffix == ".pickle":
        return str(pickle.loads(raw))
    if path.suffix == ".parquet":
        return str(parquet.read_table(path).to_pydict())
    if path.suffix == ".pftrace":
        trace = messages("perfetto")["Trace"]()
        trace.ParseFromString(raw)
        return str(trace)
    if path.suffix == ".tfevents":
        return str([Event.FromString(one) for one in
                    RawEventFileLoader(str(path)).Load()])
    return raw.decode("utf-8", "replace")


@pytest.mark.parametrize("name", _NAMES)
def test_a_file_is_the_users_alone_and_nothing_is_left_beside_it(name,
                                                                 tmp_path):
    old = os.umask(0)
    try:
        path = formats.export(made_runs.story(), name, tmp_path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", _NAMES)
def test_the_same_run_gives_the_same_bytes(name, tmp_path):
    (tmp_path / "again").mkdir()
    one = formats.export(made_runs.story(), name, tmp_path)
    two = formats.export(made_runs.story(), name, tmp_path / "again")
    if name == "events.parquet":  # pyarrow's pages differ; what is in them not
        assert told.parquet(one.read_bytes()) == told.parquet(two.read_bytes())
    else:
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("opened", [target, zipped])
def test_a_write_that_fails_leaves_the_old_file(opened, tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(RuntimeError), opened(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("name", _NAMES)
def test_a_folder_that_is_not_there_is_named(name, tmp_path):
    with pytest.raises(OSError) as error:
        formats.export(made_runs.story(), name, tmp_path / "nowhere")
    assert "nowhere" in str(error.value) and name in str(error.value)


def test_where_a_link_points_is_written(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    with target(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_what_is_no_plain_file_is_written_in_place(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with target(pipe) as file:
            file.write(b"here")
        assert os.read(reader, 10) == b"here"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


@pytest.mark.parametrize("name, package", [
    ("trace.pftrace", "google.protobuf"), ("profile.pb.gz", "google.protobuf"),
    ("events.parquet", "pyarrow"), ("metrics.prom", "prometheus_client"),
    ("otel.json", "opentelemetry.sdk.metrics"),
    ("events.tfevents", "tensorboard")])
def test_a_package_that_is_missing_is_named_with_what_to_do(
        name, package, tmp_path, monkeypatch):
    import importlib

    from stratalloc.telemetry.exports import messages

    def missing(module, *args, **kwargs):
        if module.startswith(package):
            raise ImportError(f"No module named {module!r}")
        return plain(module, *args, **kwargs)

    messages.messages.cache_clear()
    plain = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    imported = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda module: (
        missing(module) if module.startswith(package) else imported(module)))
    with pytest.raises(MissingPackageError) as error:
        formats.export(made_runs.story(), name, tmp_path)
    assert 'pip install "stratalloc[telemetry]"' in str(error.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", _NAMES)
@_ANY
@given(data=st.data())
def test_a_check_tells_of_any_bytes_and_raises_nothing(name, tmp_path, data):
    raw = bytearray(_whole(name))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at:at + data.draw(st.integers(0, 4))] = data.draw(
            st.binary(max_size=5))
    path = tmp_path / name
    path.write_bytes(bytes(raw))
    assert all(isinstance(one, str) and len(one) <= 500
               for one in formats.wrong(path))


@functools.cache
def _whole(name):
    with tempfile.TemporaryDirectory() as folder:
        return formats.export(made_runs.story(), name,
                              pathlib.Path(folder)).read_bytes()


@pytest.mark.parametrize("name", _NAMES)
def test_a_file_that_lacks_its_last_byte_is_told_to_be_cut_off(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(_whole(name)[:-1])
    assert formats.wrong(path) != []


def test_every_format_is_tried():
    assert set(formats.WRITERS.values()) == set(FORMATS)
