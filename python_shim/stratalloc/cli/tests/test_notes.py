# SPDX-License-Identifier: Apache-2.0
"""Lines on stderr, which the processes of a job share."""

import io
import sys

from stratalloc._terminal import pipes


class _Unbuffered(io.StringIO):
    """Keeps each write as it came."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def write(self, text):
        self.writes.append(text)
        return len(text)


def test_note_is_one_write(monkeypatch):
    stream = _Unbuffered()
    monkeypatch.setattr(sys, "stderr", stream)
    pipes.note("stratalloc: a line")
    assert stream.writes == ["stratalloc: a line\n"]


def test_note_without_stderr_is_dropped(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    pipes.note("stratalloc: a line")
