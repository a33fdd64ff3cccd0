# SPDX-License-Identifier: Apache-2.0
"""Files of one small run as they were when somebody last looked at them.

To look again after a change that is meant: `python test_golden.py` writes them.
"""

import gzip
import json
import pathlib
import tempfile

import pytest

import formats
import made_runs

_FOLDER = pathlib.Path(__file__).parent / "golden"
# zlib's output is its version's own, Parquet and OpenTelemetry say when.
_NAMES = sorted(set(formats.WRITERS) - {"trace.json.gz", "events.parquet",
                                        "otel.json"})


def _made(name):
    with tempfile.TemporaryDirectory() as folder:
        raw = formats.export(made_runs.story(), name,
                             pathlib.Path(folder)).read_bytes()
    return _readable(name, raw)


def _readable(name, raw):
    if name.endswith(".json"):
        return json.dumps(json.loads(raw), indent=1).encode() + b"\n"
    return gzip.decompress(raw) if name.endswith(".gz") else raw


@pytest.mark.parametrize("name", _NAMES)
def test_a_file_is_what_it_was(name):
    assert _made(name) == (_FOLDER / name.removesuffix(".gz")).read_bytes()


if __name__ == "__main__":
    for one in _NAMES:
        (_FOLDER / one.removesuffix(".gz")).write_bytes(_made(one))
