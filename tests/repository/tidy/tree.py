# SPDX-License-Identifier: Apache-2.0
"""A source tree as the rules see it: text files by path from the root."""

import dataclasses
import functools
import os
import re
from collections.abc import Iterator

# Not ours, or built: never looked at.
_SKIPPED = {".git", ".venv", "build", "__pycache__", ".pytest_cache"}
# Binary, or somebody else's words.
NOT_TEXT = (".png", ".npz", ".pt", ".bin", ".gz", ".tar", ".whl", ".pyc")

CPP = (".h", ".cc", ".cu")
# Files that carry a licence line and belong to a target.
SOURCES = CPP + (".py", ".sh", ".bzl", ".S", ".lds")

_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL
)


def _blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match.group())


@dataclasses.dataclass(frozen=True)
class File:
    """One text file; `path` has forward slashes and starts at the root."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/") or bool(
            re.search(r"_test\.(cc|h|cu)$", self.path)
        )

    @functools.cached_property
    def code(self) -> str:
        """C++ without comments and strings, line numbers kept."""
        return _COMMENT_OR_STRING.sub(_blank, self.text)


class Tree:
    """Reads everything below `root` once."""

    def __init__(self, root: str):
        self._files: dict[str, File] = {}
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(
                name
                for name in folders
                if name not in _SKIPPED and not name.startswith("bazel-")
            )
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(NOT_TEXT) or os.path.islink(path):
                    continue
                with open(path, encoding="utf-8", errors="replace") as stream:
                    relative = os.path.relpath(path, root)
                    self._files[relative] = File(relative, stream.read())

    def files(self, endings: tuple[str, ...] = ("",)) -> Iterator[File]:
        """Files whose names end so, in the order of their paths."""
        for path in sorted(self._files):
            if path.endswith(endings):
                yield self._files[path]

    def has(self, path: str) -> bool:
        return path in self._files

    def paths(self) -> list[str]:
        return sorted(self._files)
