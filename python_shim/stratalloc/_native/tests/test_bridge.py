# SPDX-License-Identifier: Apache-2.0
"""Which minors of torch an installation serves, over files made by hand."""

import pytest

from stratalloc._native import bridge, core


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Makes an installation with bridges for these minors, as "2_11"."""
    def make(*minors):
        (tmp_path / "lib").mkdir()
        for minor in minors:
            (tmp_path / "lib" / f"libstratalloc_torch_{minor}.so").touch()
        monkeypatch.setattr(core, "PACKAGE", str(tmp_path))
    return make


def test_requirement_with_bridges_is_the_newest_minor(installed):
    installed("2_9", "2_15", "2_11")
    assert bridge.supported() == ["2.9", "2.11", "2.15"]
    assert bridge.requirement() == "torch~=2.15.0"


def test_requirement_without_a_bridge_is_any_torch(installed):
    installed()
    assert bridge.requirement() == "torch"
