# SPDX-License-Identifier: Apache-2.0
"""Who may depend on which target: rooms come in by each other's doors.

A room has two: the target of its own name, which is the whole room, and
`values`, its plain values for whoever may not link the rest. Everything else
is the room's own. Tests depend on what they test: Bazel holds them to the
packages that a target's `visibility` names, and so it says who they are.
"""

import re
from collections.abc import Iterator

from tests.repository.tidy import build_files
from tests.repository.tidy.build_files import Call
from tests.repository.tidy.rooms import right_of, room_of
from tests.repository.tidy.tree import Tree

_LABEL = re.compile(r"(?<![\w:@/])//[\w./-]+(?::[\w.+/-]+)?")
_PACKAGES = re.compile(r"//([\w./-]+):__(?:pkg|subpackages)__")


def _is_door(label: str, room: str) -> bool:
    package, _, name = label[2:].partition(":")
    last = package.rpartition("/")[2]
    return package == room and (name or last) in (last, "values")


def _is_test(call: Call) -> bool:
    return call.rule.endswith("_test") or bool(call.arguments.get("testonly"))


def _past_doors(call: Call, room: str) -> Iterator[str]:
    """What code names of other rooms."""
    if _is_test(call) or room == "tests" or call.rule == "package":
        return
    shown = {"visibility": None}
    for string in sorted(build_files.strings_in({**call.arguments, **shown})):
        for label in _LABEL.findall(string):
            other = room_of(label[2:].partition(":")[0] + "/")
            if other is None or other == room:
                continue
            if right_of(other, room):
                yield (
                    f"{call.file}: {call.name} names {label}, which is to the "
                    f"right of {room}"
                )
            elif not _is_door(label, other):
                yield (
                    f"{call.file}: {call.name} names {label}; the doors of "
                    f"that room are //{other} and, if it has one, "
                    f"//{other}:values"
                )


def _too_visible(call: Call, room: str) -> Iterator[str]:
    """Whom a target, or a package by default, shows itself to."""
    if call.rule == "package":
        visibility = call.arguments.get("default_visibility", ())
    else:
        visibility = call.arguments.get("visibility")
        if visibility is None and call.rule == "exports_files":
            # Whatever the package's default is.
            yield (
                f"{call.file}: exports_files without visibility is for "
                "everyone; name the packages that read the files"
            )
    label = f"//{call.file.rpartition('/')[0]}:{call.name}"
    for entry in visibility or ():
        match = _PACKAGES.fullmatch(entry)
        seen_by = room_of(match.group(1) + "/") if match else None
        if entry == "//visibility:private" or seen_by == room:
            continue
        if call.rule == "package":
            yield (
                f"{call.file}: default_visibility {entry}; what a room does "
                "not show by its doors is its own"
            )
        elif not (
            seen_by == "tests"
            # A tool of a rule of ours.
            or entry == "//bazel:__pkg__"
            or room == "tests"
            or _is_door(label, room)
            # A file that a test reads; code that names it is told so above.
            or call.rule == "exports_files" and seen_by
        ):
            yield (
                f"{call.file}: {call.name} is visible to {entry}; it may be "
                f"to {room} and to tests, or be what //{room} or "
                f"//{room}:values depends on"
            )


def room_doors(tree: Tree) -> Iterator[str]:
    """Rooms depend on each other by their doors; tests on what they test."""
    for call in build_files.calls(tree):
        room = room_of(call.file)
        if room:
            yield from _past_doors(call, room)
            yield from _too_visible(call, room)
