# SPDX-License-Identifier: Apache-2.0
"""What comes before an out of memory, and what its text says.

A process each: the libraries and the callbacks stay once they are loaded.
"""

import importlib.metadata
import os
import re
import textwrap

from bazel import programs
from tests.simulator.cudasim.operator_bridge import simulated

START = """
import ctypes, gc, os
from tests.simulator.cudasim.operator_bridge import simulated
LIBRARIES = os.path.abspath(
    os.environ.get("CUDASIM_NATIVE", "tests/simulator/cudasim/native"))
device = simulated.load(memory="256MiB")
import torch
MIB = 1 << 20
def make(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
def failure(mib=400):
    try:
        make(mib)
    except torch.OutOfMemoryError as error:
        return str(error)
    raise SystemExit(f"{mib} of 256 MiB were given out")
"""
CPP = """
torch.cuda.init()
cpp = ctypes.CDLL(LIBRARIES + "/libcpp_only.so")
cpp.memory_callback_used.restype = ctypes.c_uint64
cpp.memory_callback_hold.argtypes = [ctypes.c_uint64]
"""
FUNCTIONS = (
    "nvmlInit_v2",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetComputeRunningProcesses",
)
FIRST = 5_000_000  # no process has such a number
OURS = simulated.allocator() == "stratalloc"
MINOR = int(importlib.metadata.version("torch").split(".")[1])
# What follows the sentences that both allocators have.
REST = ("The tensor is larger than the card: " if OURS
        else "Of the allocated memory 0 bytes is allocated by PyTorch, ")


def child(script, fresh=False, **environment):
    """Runs it after START; its output, which must be all it prints."""
    done = programs.run("-c", START + textwrap.dedent(script),
                        env={**os.environ, **environment}, merged=True,
                        fresh=fresh)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_every_process_on_the_device_is_named():
    text = child(
        "print(failure())",
        CUDASIM_NVML_PROCESSES=f"{FIRST}:{3 << 20} self:{5 << 30}",
    )
    assert (
        "free. Process 5000000 has 3.00 MiB memory in use. Including "
        "non-PyTorch memory, this process has 5.00 GiB memory in use. " + REST
    ) in text


def test_more_processes_than_fit_at_first():
    text = child(
        "print(failure())",
        CUDASIM_NVML_PROCESSES=" ".join(f"{FIRST + i}:{i << 20}" for i in range(2, 16)),
    )
    assert re.findall(r"Process (\d+) has (\d+)\.00 MiB", text) == [
        (str(FIRST + i), str(i)) for i in range(2, 16)
    ]


def test_without_nvml_nothing_is_said_of_processes():
    for there in ("off", "on"):  # no library, and no process listed
        text = child("print(failure())", fresh=True, CUDASIM_NVML=there)
        assert "is free. " + REST in text, text


def test_nvml_that_fails_is_tolerated():
    """PyTorch issue 185240: native raised an internal assert before 2.14."""
    for function in FUNCTIONS:
        text = child(
            """
            try:
                print(failure())
            except RuntimeError as error:
                print("native:", error)
            """,
            CUDASIM_NVML_PROCESSES=f"{FIRST}:4096",
            CUDASIM_NVML_FAIL=function,
        )
        if OURS:
            assert text.startswith("CUDA out of memory."), text
        if OURS or MINOR >= 14:
            assert "is free. " + REST in text, text
        else:
            assert "native: NVML_SUCCESS ==" in text, text


def test_memory_that_nvml_does_not_know():
    text = child(
        "print(failure())",
        CUDASIM_NVML_PROCESSES=f"{FIRST}:- {FIRST + 1}:4096",
    )
    assert "Process 5000001 has 4.00 KiB memory in use." in text
    # Native prints 2 to the power of 64 bytes.
    assert ("Process 5000000" in text) == (not OURS), text


def test_a_callback_runs_before_memory_grows():
    child(CPP + textwrap.dedent(
        """
        x = make(30)
        assert cpp.memory_callback_calls() == 1  # nothing was cached
        assert cpp.memory_callback_used() == 0
        del x
        x = make(30)
        assert cpp.memory_callback_calls() == 1  # this was
        y = make(30)
        assert cpp.memory_callback_calls() == 2
        assert cpp.memory_callback_used() == device.used() - 30 * MIB
        """
    ))


def test_what_a_callback_frees_is_handed_out():
    child(CPP + textwrap.dedent(
        """
        cpp.memory_callback_hold(100 * MIB)
        used, calls = device.used(), cpp.memory_callback_calls()
        x = make(100)
        assert cpp.memory_callback_calls() == calls + 1
        assert device.used() == used
        stats = torch.cuda.memory_stats()
        assert stats["allocation.all.current"] == 1
        assert stats["num_alloc_retries"] == stats["num_ooms"] == 0
        # Also when it is the last that there is.
        del x
        cpp.memory_callback_hold(200 * MIB)
        x = make(210)
        stats = torch.cuda.memory_stats()
        assert stats["allocation.all.current"] == 1
        assert stats["num_ooms"] == 0
        """
    ))


def test_a_callback_that_frees_nothing():
    child(CPP + textwrap.dedent(
        """
        failure()
        assert cpp.memory_callback_calls() == 1
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        """
    ))


def test_sizes_of_expandable_segments():
    child(CPP + textwrap.dedent(
        """
        def sizes(stream):
            small, large = ctypes.c_uint64(), ctypes.c_uint64()
            count = cpp.expandable_segments(
                ctypes.c_uint64(stream.cuda_stream),
                ctypes.byref(small), ctypes.byref(large))
            return count, small.value, large.value

        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        assert sizes(one) == (0, 0, 0)
        with torch.cuda.stream(one):
            x = make(1)
            assert sizes(one) == (1, 2 * MIB, 0)
            y = make(60)
        count, small, large = sizes(one)
        assert (count, small) == (2, 2 * MIB)
        assert large == torch.cuda.memory_stats()[
            "reserved_bytes.large_pool.current"] >= 60 * MIB
        with torch.cuda.stream(two):
            z = make(40)
        assert sizes(two) == (3, 0, 40 * MIB)
        assert sizes(one) == (3, small, large)
        w = make(20)  # those of the default stream are left out
        assert sizes(torch.cuda.default_stream()) == (3, 0, 0)
        """
    ), PYTORCH_ALLOC_CONF="expandable_segments:True")
