# SPDX-License-Identifier: Apache-2.0
"""Rules about names of other parts: includes, locks, the simulator.

Each file includes its own room, layer and those left of it; headers of CUDA and
torch, raw mutexes and entries of handles stay where they belong.
"""

import re
from collections.abc import Iterator

from tests.repository.tidy.rooms import BESIDE_CODE, LAYERS, layers_of, right_of, room_of
from tests.repository.tidy.tree import CPP, SOURCES, File, Tree

_CUDA_ROOMS = (
    "allocator/cuda/", "tiering/gpu/", "tests/simulator/conformance/", "tests/simulator/cudasim/",
)
_TORCH_ROOMS = (
    "python_shim/torch_bridge/", "tests/simulator/cudasim/", "tests/system/replay/",
)

_CUDA_HEADER = re.compile(
    r"(cuda\w*|cublas\w*|cudnn\w*|cufft\w*|curand\w*|cusparse\w*|cusolver\w*"
    r"|cupti\w*|nvrtc|nvml|driver_types|vector_types|vector_functions"
    r"|builtin_types|device_\w+|cooperative_groups)\.(h|hpp)"
    r"|(cub|thrust|cuda|crt|nv|nvtx3|cooperative_groups)/.*"
)
_TORCH_HEADER = re.compile(r"(ATen|c10|caffe2|torch|pybind11)/.*")
_INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
_MUTEX = re.compile(
    r"\bstd::(?:recursive_|shared_)?(?:timed_)?mutex\b|\bpthread_mutex_t\b"
)
# What the allocator keeps of a handle, by its name and by the ways to it.
_HANDLE_ENTRY = re.compile(r"\bHandleEntry\b|\.entry\(\)|->entries\b")
# Its library, functions, variables and module. The name of the package to
# install is for users, its folder for upward_includes.
_SIMULATOR = re.compile(
    r"(?<!stratalloc-)(?<!tests/simulator/)\w*cudasim\w*", re.IGNORECASE
)


def _includes(file: File) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file.text.splitlines(), 1):
        match = _INCLUDE.match(line)
        if match:
            yield number, match.group(2)


def upward_includes(tree: Tree) -> Iterator[str]:
    """No room includes one to its right."""
    for file in tree.files(CPP):
        room = room_of(file.path)
        if room is None:
            continue
        for number, header in _includes(file):
            other = room_of(header)
            if other is None or not right_of(other, room):
                continue
            # A test beside the code is a test: it may run on the simulator.
            if file.is_test and other == "tests":
                continue
            yield (
                f"{file.path}:{number}: {room} includes {header}, which is "
                f"to its right ({other}); let {room} own an interface that "
                f"{other} implements"
            )


def upward_layers(tree: Tree) -> Iterator[str]:
    """No layer of a folder includes one to its right; each folder is a layer."""
    for file in tree.files(CPP):
        for folder, layer in layers_of(file.path).items():
            if layer not in LAYERS[folder]:
                yield (
                    f"{file.path}: {folder}/{layer} is no layer of {folder}; "
                    "give it a place in LAYERS of tests/repository/tidy/rooms.py"
                )
            elif not file.is_test:  # beside its part, and on the whole device
                yield from _upward_of(file, folder, layer)


def _upward_of(file: File, folder: str, layer: str) -> Iterator[str]:
    for number, header in _includes(file):
        other = layers_of(header).get(folder)
        # Another room of the same folder is upward_includes' to report.
        if other is None or room_of(header) != room_of(file.path):
            continue
        if LAYERS[folder].index(other) > LAYERS[folder].index(layer):
            yield (
                f"{file.path}:{number}: the layer {layer} of {folder} "
                f"includes {header}, which is to its right; let {layer} own "
                "an interface that the other implements"
            )


def cuda_headers(tree: Tree) -> Iterator[str]:
    """CUDA's headers stay where the device is."""
    for file in tree.files(CPP):
        if file.path.startswith(_CUDA_ROOMS):
            continue
        for number, header in _includes(file):
            if _CUDA_HEADER.fullmatch(header):
                yield (
                    f"{file.path}:{number}: CUDA header {header} outside "
                    f"{', '.join(_CUDA_ROOMS)}; go through "
                    "allocator/cuda/cuda_api.h"
                )


def torch_headers(tree: Tree) -> Iterator[str]:
    """torch's headers stay in the bridges: the core serves every torch."""
    for file in tree.files(CPP):
        if file.path.startswith(_TORCH_ROOMS):
            continue
        for number, header in _includes(file):
            if _TORCH_HEADER.fullmatch(header):
                yield (
                    f"{file.path}:{number}: torch header {header} outside "
                    f"{', '.join(_TORCH_ROOMS)}"
                )


def simulator_names(tree: Tree) -> Iterator[str]:
    """What ships does not know which device simulates."""
    for file in tree.files(SOURCES):
        if file.is_test or BESIDE_CODE.search(file.path):
            continue
        if room_of(file.path) is None:
            continue
        for number, line in enumerate(file.text.splitlines(), 1):
            match = _SIMULATOR.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; the simulated "
                    "device registers itself (stratalloc/simulate.py), what is "
                    "done on it is asked of the dispatcher or of CUDA"
                )


def raw_mutexes(tree: Tree) -> Iterator[str]:
    """Locks have ranks; a raw mutex has none."""
    for file in tree.files(CPP):
        if file.path.startswith(("allocator/base/", "tests/")) or file.is_test:
            continue
        for number, line in enumerate(file.code.splitlines(), 1):
            match = _MUTEX.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; use the ranked "
                    "mutex of allocator/base/mutex.h"
                )


def handle_entries(tree: Tree) -> Iterator[str]:
    """What is mapped and lives at a handle is the allocator's own."""
    for file in tree.files(CPP):
        if file.path.startswith("allocator/") or room_of(file.path) is None:
            continue
        for number, line in enumerate(file.code.splitlines(), 1):
            match = _HANDLE_ENTRY.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; ask the HandleRef "
                    "for its state and its use, or the DeviceAllocator"
                )
