# SPDX-License-Identifier: Apache-2.0
"""The picture of the first page is what its program draws."""

import os
import re
from xml.etree import ElementTree

import pytest

from bazel import programs

_HERE = os.path.dirname(os.path.abspath(__file__))
_SVG = "{http://www.w3.org/2000/svg}"


def _shown(path):
    """(name of each part, MiB at its peak) of a picture."""
    root = ElementTree.parse(path).getroot()
    titles = [title.text for title in root.iter(_SVG + "title")]
    return {name: float(size) for name, size in (
        re.fullmatch(r"(.*), at most ([\d.]+) MiB", title).groups()
        for title in titles if ", at most " in title)}


def test_picture_shows_memory_on_every_tier_within_its_bounds(tmp_path):
    drawn = tmp_path / "memory.svg"
    done = programs.run(os.path.join(_HERE, "memory_picture.py"), str(drawn),
                        env=dict(os.environ), timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shown = _shown(drawn)
    assert list(shown) == ["GPU", "host memory", "disk", "size of the GPU"]
    assert 0 < shown["GPU"] <= shown["size of the GPU"] == 96
    assert 0 < shown["host memory"] <= 64
    assert shown["disk"] > 0
    assert "prefers-color-scheme:dark" in drawn.read_text()


def test_picture_of_the_first_page_has_the_parts_of_the_program():
    shown = _shown(os.path.join(_HERE, "memory.svg"))
    assert list(shown) == ["GPU", "host memory", "disk", "size of the GPU"]
    assert 0 < shown["GPU"] <= shown["size of the GPU"] == 96
    assert 0 < shown["host memory"] <= 64 and shown["disk"] > 0


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
