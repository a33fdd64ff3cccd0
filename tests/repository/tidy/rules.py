# SPDX-License-Identifier: Apache-2.0
"""The repository's own rules, each a function from a tree to complaints.

A rule takes the `Tree` and yields "path:line: what is wrong; what to do".
Nothing is built and nothing is imported from the project. `ALL` has every rule;
those of this module are about files as a whole.
"""

import ast
import re
from collections.abc import Iterator

from tests.repository.tidy import build_files
from tests.repository.tidy.documents import (
    broken_links,
    lock_order,
    unknown_names,
    unknown_rules,
)
from tests.repository.tidy.doors import room_doors
from tests.repository.tidy.functions import long_functions
from tests.repository.tidy.imports import (
    import_cycles,
    package_doors,
    upward_imports,
)
from tests.repository.tidy.includes import (
    cuda_headers,
    handle_entries,
    raw_mutexes,
    simulator_names,
    torch_headers,
    upward_includes,
    upward_layers,
)
from tests.repository.tidy.rooms import room_of
from tests.repository.tidy.state_table import handle_states, state_tests
from tests.repository.tidy.tree import CPP, SOURCES, Tree
from tests.repository.tidy.wording import wording

_UNFINISHED = re.compile(r"\b(?:FIX" + r"ME|TO" + r"DO)\b")
# A header longer than this has a second noun in it.
_HEADER_LINES = 350
# A source file longer than this has a second noun in it.
_SOURCE_LINES = 500
# The oldest Python of the wheels (tag in python_shim/wheel); `./dev` runs newer
# ones alone.
_OLDEST_PYTHON = (3, 10)
_IN_WHEELS = ("python_shim/", "telemetry/", "tests/simulator/cudasim/package/")


def unfinished_marks(tree: Tree) -> Iterator[str]:
    """Nothing is left for later in the code."""
    for file in tree.files():
        for number, line in enumerate(file.text.splitlines(), 1):
            match = _UNFINISHED.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; do it, or say "
                    "in the room's README what is not there yet"
                )


def orphans(tree: Tree) -> Iterator[str]:
    """Every source belongs to a target: what is not built rots."""
    named = build_files.named_files(tree)
    for file in tree.files(SOURCES):
        if file.path not in named:
            yield (
                f"{file.path}: in no BUILD target; name it in "
                f"{file.folder or '.'}/BUILD.bazel or delete it"
            )


def licence_lines(tree: Tree) -> Iterator[str]:
    """Every source says its licence, first or right after `#!`."""
    for file in tree.files():
        if not (
            file.path.endswith(SOURCES)
            or file.name in ("BUILD.bazel", "WORKSPACE", "dev")
            or file.text.startswith("#!")
        ):
            continue
        if not any(
            "SPDX-License-Identifier: Apache-2.0" in line
            for line in file.text.splitlines()[:3]
        ):
            yield (
                f"{file.path}:1: no SPDX-License-Identifier: Apache-2.0 in "
                "the first lines"
            )


def long_headers(tree: Tree) -> Iterator[str]:
    """A header is read in one go."""
    for file in tree.files((".h",)):
        lines = len(file.text.splitlines())
        if lines > _HEADER_LINES:
            yield (
                f"{file.path}:{_HEADER_LINES + 1}: {lines} lines, "
                f"{_HEADER_LINES} are the most; find the second noun and give "
                "it a file"
            )


def long_sources(tree: Tree) -> Iterator[str]:
    """A source file holds one noun, tests too."""
    for file in tree.files(CPP + (".py", ".bzl")):
        lines = len(file.text.splitlines())
        if lines > _SOURCE_LINES:
            yield (
                f"{file.path}:{_SOURCE_LINES + 1}: {lines} lines, "
                f"{_SOURCE_LINES} are the most; find the second noun and give "
                "it a file"
            )


def missing_readmes(tree: Tree) -> Iterator[str]:
    """A room explains itself to whoever opens it."""
    rooms = set()
    for file in tree.files(SOURCES):
        room = room_of(file.path)
        if room:
            rooms.add(room)
        parts = file.path.split("/")
        if parts[0] in ("tests", "third_party") and len(parts) > 1:
            rooms.add(parts[0])
        if parts[0] == "tests" and len(parts) > 2:
            rooms.add("/".join(parts[:2]))
            if tree.has("/".join(parts[:3]) + "/BUILD.bazel"):
                rooms.add("/".join(parts[:3]))
    for room in sorted(rooms):
        if not tree.has(room + "/README.md"):
            yield (
                f"{room}: no README.md; say what it is for, what it may "
                "include and where to start reading"
            )


def wide_readmes(tree: Tree) -> Iterator[str]:
    """READMEs fold at 100 columns; a row of a table cannot."""
    for file in tree.files((".md",)):
        code = False
        for number, line in enumerate(file.text.splitlines(), 1):
            if line.lstrip().startswith("```"):
                code = not code
            if code or line.lstrip().startswith(("|", "http")):
                continue
            if len(line) > 100:
                yield (
                    f"{file.path}:{number}: {len(line)} columns; fold the "
                    "text at 100"
                )


def newer_syntax(tree: Tree) -> Iterator[str]:
    """What wheels have is read by the oldest Python that their tag admits."""
    for file in tree.files():
        if not file.path.startswith(_IN_WHEELS) or not file.path.endswith(".py"):
            continue
        try:
            ast.parse(file.text, feature_version=_OLDEST_PYTHON)
        except SyntaxError as error:
            yield (
                f"{file.path}:{error.lineno}: {error.msg}; write it as Python "
                f"{'.'.join(map(str, _OLDEST_PYTHON))} has it"
            )


def uncached_long_tests(tree: Tree) -> Iterator[str]:
    """An interrupted `./dev test --long` goes on: Bazel keeps what passed."""
    for call in build_files.calls(tree):
        tags = build_files.strings_in(call.arguments.get("tags"))
        if "long" in tags or call.arguments.get("long"):
            for tag in sorted(tags & {"external", "no-cache"}):
                yield (
                    f"{call.file}: {call.name} is long and tagged {tag}: it "
                    "would run again after an interruption; drop the tag"
                )


ALL = (
    upward_includes,
    upward_layers,
    room_doors,
    cuda_headers,
    torch_headers,
    simulator_names,
    raw_mutexes,
    handle_entries,
    unfinished_marks,
    orphans,
    licence_lines,
    long_headers,
    long_sources,
    long_functions,
    missing_readmes,
    wide_readmes,
    unknown_rules,
    unknown_names,
    broken_links,
    lock_order,
    handle_states,
    state_tests,
    import_cycles,
    newer_syntax,
    uncached_long_tests,
    upward_imports,
    package_doors,
    wording,
)
