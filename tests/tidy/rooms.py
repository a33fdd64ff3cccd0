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

# The folders of a folder, left to right likewise; "" is its own files.
LAYERS = {
    "allocator": (
        "base", "events", "values", "cuda", "state", "memory", "heap",
        "streams", "blocks", "requests", "explain", "ladder", "",
    ),
    "tiering": ("io", "gpu", "host", "policy", "engine", ""),
    "telemetry": ("recording", ""),
    "python_shim": (
        "core", "refusals", "bridge_api", "c_api", "extensions",
        "torch_bridge", "testing", "",
    ),
}


def layers_of(path: str) -> dict[str, str]:
    """The layer of a path in each folder around it that has layers."""
    found = {}
    for folder in LAYERS:
        if path.startswith(folder + "/"):
            inside = path[len(folder) + 1:]
            found[folder] = inside.rpartition("/")[0].partition("/")[0]
    return found


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
