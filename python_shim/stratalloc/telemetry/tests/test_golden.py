# SPDX-License-Identifier: Apache-2.0
"""Files of one small run as they were when somebody last looked at them.

Of formats whose bytes nobody can look at, or which say the version of the
library that writes them, it is what is in the file. To look again after a
change that is meant: `python test_golden.py` writes them.
"""

import gzip
import json
import pathlib
import tempfile

import pytest

import formats
import made_runs
from stratalloc.telemetry.exports import scalars

_FOLDER = pathlib.Path(__file__).parent / "golden"
_STEPS = "wandb.json"  # no file: what log() tells, call by call


def _parquet(path):
    from pyarrow import parquet

    table = parquet.read_table(path)
    return {"metadata": {key.decode(): value.decode() for key, value
                         in table.schema.metadata.items()},
            "columns": {one.name: str(one.type) for one in table.schema},
            "rows": table.to_pylist()}


def _tensorboard(path):
    from google.protobuf import json_format
    from tensorboard.backend.event_processing import event_file_loader
    from tensorboard.compat.proto.event_pb2 import Event

    loader = event_file_loader.RawEventFileLoader(str(path))
    return [json_format.MessageToDict(Event.FromString(one))
            for one in loader.Load()]


_DECODED = {"events.parquet": _parquet, "events.tfevents": _tensorboard}
_NAMES = [*sorted(formats.WRITERS), _STEPS]


def _golden(name):
    if name in _DECODED:
        name += ".json"
    return _FOLDER / name.removesuffix(".gz")


def _made(name):
    run = made_runs.story()
    if name == _STEPS:
        steps = []
        scalars.log(run, lambda row, step: steps.append({"step": step, **row}))
        return _text(steps)
    with tempfile.TemporaryDirectory() as folder:
        path = formats.export(run, name, pathlib.Path(folder))
        if name in _DECODED:
            return _text(_DECODED[name](path))
        raw = path.read_bytes()
    if name.endswith(".gz"):  # zlib's output is its version's own
        raw, name = gzip.decompress(raw), name.removesuffix(".gz")
    return _text(json.loads(raw)) if name.endswith(".json") else raw


def _text(value):
    return json.dumps(value, indent=1).encode() + b"\n"


@pytest.mark.parametrize("name", _NAMES)
def test_a_file_is_what_it_was(name):
    assert _made(name) == _golden(name).read_bytes()


if __name__ == "__main__":
    for one in _NAMES:
        _golden(one).write_bytes(_made(one))
