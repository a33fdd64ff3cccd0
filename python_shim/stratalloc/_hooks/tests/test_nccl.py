# SPDX-License-Identifier: Apache-2.0
"""Variables of NCCL that enable() sets."""

import os

from stratalloc import simulate

simulate.load("64MiB")

import pytest  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc._hooks import nccl  # noqa: E402

GRAPHS = "NCCL_GRAPH_REGISTER"
SEGMENTS = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"


def test_enable_switches_registration_in_graphs_off():
    before = os.environ.pop(GRAPHS, None)
    try:
        stratalloc.enable()
        assert os.environ[GRAPHS] == "0"
    finally:
        os.environ.pop(GRAPHS, None)
        if before is not None:
            os.environ[GRAPHS] = before


def test_prepare_with_a_users_value_keeps_it(caplog):
    environ = {GRAPHS: "1"}
    nccl.prepare(environ)
    assert environ == {GRAPHS: "1"}
    assert not caplog.records


def test_prepare_sets_the_variable_once(caplog):
    environ = {}
    with caplog.at_level("INFO", "stratalloc"):
        nccl.prepare(environ)
        nccl.prepare(environ)
    assert environ == {GRAPHS: "0"}
    (record,) = caplog.records
    assert record.levelname == "INFO" and GRAPHS in record.getMessage()


@pytest.mark.parametrize("value, warns", [("1", True), ("true", True),
                                          ("0", False), ("", False)])
def test_prepare_with_registered_segments_warns(caplog, value, warns):
    nccl.prepare({GRAPHS: "0", SEGMENTS: value})
    assert [record.levelname for record in caplog.records] == (
        ["WARNING"] if warns else [])
