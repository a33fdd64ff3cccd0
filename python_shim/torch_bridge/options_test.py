# SPDX-License-Identifier: Apache-2.0
"""Every option of PYTORCH_ALLOC_CONF has its effect, tested, or one line of the
log that it has none."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

from stratalloc._hooks import torch_settings as _torch_settings

_ROWS = re.findall(
    r"^\| `([a-z0-9_*]+)`(?: \(torch 2\.\d+\))? \|",
    pathlib.Path("python_shim/torch_bridge/OPTIONS.md").read_text(), re.MULTILINE)
_SETTINGS = "tests/simulator/cudasim/native/test_settings.py"
# option -> (file, test of its effect under this allocator)
_EFFECTS = {
    "backend": (_SETTINGS, "test_the_asynchronous_backend"),
    "roundup_power2_divisions": (_SETTINGS, "test_roundup_power2_divisions"),
    "per_process_memory_fraction": ("python_shim/torch_bridge/real_core_test.py",
                                    "test_init_applies_the_options"),
    "garbage_collection_threshold": (_SETTINGS, "test_garbage_collection"),
    "expandable_segments": (_SETTINGS, "test_expandable_segments"),
    "throw_on_cudamalloc_oom":
        ("tests/simulator/cudasim/native/test_newer_minors.py",
         "test_request_beyond_the_fraction_is_rejected"),
    "pinned_*": (_SETTINGS, "test_pinned_memory_by_registration"),
}


def _known():
    """Every option that this torch takes."""
    names = ctypes.create_string_buffer(10_000)
    ctypes.CDLL(os.path.abspath(
        "tests/simulator/cudasim/native/libcpp_only.so")
    ).known_options(names, len(names))
    # The HIP names of some options are not CUDA's.
    return {name for name in names.value.decode().split(",")
            if name and "hip" not in name}


_VALUES = {name: value for name, value in (
    {name: "True" for name in _torch_settings.NO_EFFECT} | {
        "max_split_size_mb": "64", "max_non_split_rounding_mb": "70",
        "large_segment_size_mb": "40", "expandable_segments_reserve": "0.5",
        "expandable_segments_reserve_by_class": "[serving:0.25]"}).items()
    if name in _known()}


def _lines(variable, program="import torch"):
    """Lines about options of a program that enables the allocator."""
    done = subprocess.run(
        [sys.executable, "-c",
         "from stratalloc import simulate; simulate.load('64MiB')\n"
         "import torch, warnings, stratalloc\n"
         "warnings.simplefilter('ignore')\n"
         f"stratalloc.enable(tiering=False)\n{program}\n"],
        env={**os.environ, **variable}, capture_output=True, text=True,
        timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "option" in line]


def test_options_of_this_torch_have_a_row_each():
    known = _known()
    assert "expandable_segments" in known and len(known) > 10, known
    rows = {row for row in _ROWS if "*" not in row}
    missing = {key for key in known - rows if not key.startswith("pinned_")}
    assert not missing
    # Rows that this torch has no option for come with a later one.
    later = {"throw_on_cudamalloc_oom", "expandable_segments_reserve",
             "expandable_segments_reserve_by_class"}
    assert rows - known <= later


@pytest.mark.parametrize("option", _ROWS)
def test_option_has_an_effect_or_a_line(option):
    if option in _torch_settings.NO_EFFECT:
        return  # test_options_without_an_effect_are_logged_once
    path, test = _EFFECTS[option]
    assert f"\ndef {test}(" in pathlib.Path(path).read_text()


@pytest.mark.parametrize("variable",
                         ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_options_without_an_effect_are_logged_once(variable):
    text = ",".join(f"{name}:{value}" for name, value in _VALUES.items())
    lines = _lines({variable: text},
                   f"torch.cuda.memory._set_allocator_settings('{text}')")
    assert len(lines) == len(_VALUES)
    for (name, value), line in zip(_VALUES.items(), lines):
        assert f"option {name}:{value} has no effect" in line
        assert "; " in line and line.endswith(".")


def test_options_set_at_run_time_are_logged():
    first, second = _lines({}, (
        "torch.cuda.memory._set_allocator_settings("
        "'graph_capture_record_stream_reuse:True')\n"
        "torch._C._accelerator_setAllocatorSettings('large_segment_size_mb:40')"))
    assert "record_stream() in the capture" in first
    assert "on a GPU with virtual memory management" in second


_KEEP_THEIR_MEANING = (
    "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:4]",
    "backend:native,garbage_collection_threshold:0.8",
    "pinned_use_background_threads:True,per_process_memory_fraction:0.5",
    "graph_capture_record_stream_reuse:False,release_lock_on_cudamalloc:False",
    "expandable_segments:False,max_split_size_mb:64,large_segment_size_mb:40")


def test_options_that_keep_their_meaning_log_nothing():
    assert _lines(
        {"PYTORCH_ALLOC_CONF": _KEEP_THEIR_MEANING[0]},
        "\n".join(f"torch._C._accelerator_setAllocatorSettings({text!r})"
                  for text in _KEEP_THEIR_MEANING[1:])) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
