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
    "telemetry/python/model",
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
    "python_shim/torch_bridge": (
        "base", "collectives", "autograd", "allocator", "guard", "testing",
        "bench", "",
    ),
}

# The folders of Python that make the package, and the name of each in it.
PACKAGES = {
    "python_shim/stratalloc": "stratalloc",
    "python_shim/compat": "stratalloc.compat",
    "telemetry/python/model": "stratalloc.telemetry",
}

# The folders and the modules at the top of the package, left to right likewise;
# "" is the package itself, which imports what is asked of it.
PACKAGE_LAYERS = (
    "_native", "sizes", "_rendering", "_setting_kinds", "settings", "simulate",
    "_hooks", "_tiering", "_ownership", "scopes", "_terminal", "_reports",
    "telemetry", "_recording", "_live", "_oom", "_metrics", "_notebook",
    "_testing", "_enable", "_disable", "_signatures", "_autoload",
    "pytest_plugin",
    "compat", "demo", "bench", "cli", "__main__", "",
)

# A part of the package, and its one module that imports the rest.
PACKAGE_DOORS = {"stratalloc.compat": "stratalloc.compat._package"}

# Folders whose modules import nothing of the package but each other.
PACKAGE_ALONE = ("telemetry/python/model",)


def module_of(path: str) -> str | None:
    """The name that a source of the package is imported by."""
    folder = max((folder for folder in PACKAGES
                  if path.startswith(folder + "/")), key=len, default=None)
    if folder is None or not path.endswith(".py"):
        return None
    inside = path.removeprefix(folder).removesuffix(".py").replace("/", ".")
    return (PACKAGES[folder] + inside).removesuffix(".__init__")


def layer_of_module(name: str) -> str:
    """The layer of the package that a module of it lies in."""
    return name.partition(".")[2].partition(".")[0]


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
