# SPDX-License-Identifier: Apache-2.0
"""VIRTUALS.md is complete and true: read against torch's own headers."""

import glob
import os
import re

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
INCLUDE = os.path.join(os.path.dirname(torch.__file__), "include", "c10")
CLASSES = {
    "Allocator": "core/Allocator.h",
    "DeviceAllocator": "core/CachingDeviceAllocator.h",
    "CUDAAllocator": "cuda/CUDACachingAllocator.h",
}
# Overrides or repeats a virtual of a base class under the same name.
REPEATED = {("CUDAAllocator", "recordStream")}


def _read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def virtuals():
    """{(class, method)} of the installed headers."""
    found = set()
    for name, header in CLASSES.items():
        text = _read(INCLUDE, header)
        start = re.search(rf"(class|struct)( C10\w*)? {name}\b[^;{{]*{{", text)
        body = text[start.end() : text.index("\n};", start.end())]
        body = re.sub(r"//[^\n]*", "", body)
        for match in re.finditer(
            r"virtual\s+(?!~)[\w:<>,\s&*]*?[\s&*](\w+)\(", body
        ):
            found.add((name, match.group(1)))
    return found - REPEATED


def table():
    """{(class, method): (minor that added it, test)}"""
    rows = {}
    for line in _read(HERE, "VIRTUALS.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] in CLASSES:
            since = int(cells[2].removeprefix("2.") or 0)
            rows[cells[0], cells[1].strip("`")] = since, cells[3]
    return rows


def test_every_virtual_has_a_row():
    minor = int(torch.__version__.split(".")[1])
    assert len(virtuals()) > 40
    assert virtuals() == {
        row for row, (since, _) in table().items() if since <= minor}


def test_every_virtual_is_ours_and_none_refuses():
    header = _read(HERE, "allocator", "torch_allocator.h")
    for _, method in virtuals():
        assert re.search(rf"\b{method}\([^;]*override", header), method
    sources = glob.glob(os.path.join(HERE, "*", "*.cc"))
    assert len(sources) > 20
    for path in sources:
        if os.path.basename(path) != "bridge_error.cc":
            assert "ThrowUnsupported(" not in _read(path), path


def _ours(folder):
    """Names of the files that the folder's BUILD.bazel also runs over our
    allocator: its list _OURS."""
    build = _read(ROOT, folder, "BUILD.bazel")
    (listed,) = re.findall(r"^_OURS = \[(.*?)\]", build, re.DOTALL | re.MULTILINE)
    return re.findall(r'"(\w+)"', listed)


def on_the_real_core(path):
    """Whether the file's tests run over the product's core.

    It loads the product itself, or its folder runs it over the product's
    allocator too; the core that records stands in for neither.
    """
    text = _read(ROOT, path)
    if "torch_bridge.testing import" in text:
        return False
    folder, name = os.path.split(path)
    if re.search(r"^assert stratalloc\.enable\(", text, re.MULTILINE):
        return True
    if name.endswith("_cases.py"):  # test_X_ours.py has X_cases.py's tests
        ours = f"test_{name.removesuffix('_cases.py')}_ours.py"
        cases = f"from {folder.replace('/', '.')}.{name[:-3]} import *"
        loads = _read(ROOT, folder, ours)
        return cases in loads and 'SIMULATED_ALLOCATOR="stratalloc"' in loads
    return name.removesuffix(".py") in _ours(folder)


def test_every_test_exists_and_runs_on_the_real_core():
    for (_, method), (_, cell) in table().items():
        path, test = re.fullmatch(r"`([^`]+)`: `(\w+)`", cell).groups()
        assert re.search(rf"^def {test}\(", _read(ROOT, path), re.MULTILINE), (
            method, path)  # fmt: skip
        assert on_the_real_core(path), (method, path)


def test_what_is_no_real_core():
    for name in ("allocator/allocator_test.py", "allocator/raw_memory_test.py",
                 "guard/op_guard_test.py"):
        assert not on_the_real_core(f"python_shim/torch_bridge/{name}")
    assert not on_the_real_core("tests/simulator/cudasim/operator_bridge/test_sparse.py")
