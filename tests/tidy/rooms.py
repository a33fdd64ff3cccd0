# SPDX-License-Identifier: Apache-2.0
"""The rooms of the repository: which there are, and which a path lies in."""

import re

# Tests in Python, and what only tests use.
BESIDE_CODE = re.compile(r"_test\.py$|/tests/|/testing/")

# The one-way street, left to right: a room includes only itself and what
# stands before it. The longest matching name is a file's room.
ROOMS = (
    "allocator/base",
    "allocator/events",
    "allocator/values",
    "allocator/cuda",
    "allocator",
    "accounting",
    "tiering",
    "telemetry",
    "python_shim",
    "tests",
)

# The folders of a room, left to right likewise; "" is the room's own files.
LAYERS = {
    "allocator": (
        "base", "events", "values", "cuda", "state", "memory", "heap",
        "streams", "blocks", "requests", "explain", "ladder", "",
    ),
    "tiering": ("io", "gpu", "host", "policy", "engine", ""),
    "telemetry": ("recording", ""),
}


def layer_of(path: str) -> tuple[str, str] | None:
    """(room, layer) of a path in a room that has layers."""
    room, _, inside = path.partition("/")
    if room not in LAYERS or not inside:
        return None
    return room, inside.partition("/")[0] if "/" in inside else ""


def room_of(path: str) -> str | None:
    """The room a path lies in, or None outside of all."""
    inside = [room for room in ROOMS if path.startswith(room + "/")]
    return max(inside, key=len, default=None)


def right_of(other: str, room: str) -> bool:
    """Whether `other` stands to the right of `room`."""
    return ROOMS.index(other) > ROOMS.index(room)


def is_of_a_room(path: str) -> bool:
    """Whether a path is of the product, or a document about all of it."""
    return not path.startswith("tests/") and (
        room_of(path) is not None or path in ("DESIGN.md", "CONTRIBUTING.md")
    )
