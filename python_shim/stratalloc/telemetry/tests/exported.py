# SPDX-License-Identifier: Apache-2.0
"""Exports of a run as bytes and JSON, and random runs to export."""

import json
import pathlib
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

import formats

RUNS = given(st.integers(0, 1 << 30), st.integers(1, 150))
SOME = settings(max_examples=25, deadline=None)


def bytes_of(run, name):
    with tempfile.TemporaryDirectory() as folder:
        return formats.export(run, name, pathlib.Path(folder)).read_bytes()


def json_of(run, name):
    return json.loads(bytes_of(run, name))
