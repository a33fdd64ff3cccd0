# SPDX-License-Identifier: Apache-2.0
"""What libraries take from the allocator on a card, and give back."""

import ctypes
import os
import threading

from bazel import programs
from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="1GiB", CUDASIM_CARD="h200")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.nn import functional

MIB = 1 << 20
CUBLAS = 32 * MIB

allocated = torch.cuda.memory_allocated


@pytest.fixture(autouse=True)
def no_workspaces():
    yield
    torch._C._cuda_clearCublasWorkspaces()
    assert allocated() == 0


def torchs(name):
    library = ctypes.CDLL(
        os.path.join(os.path.dirname(torch.__file__), "lib/libtorch_cuda.so")
    )
    function = getattr(library, f"_ZN2at4cuda{len(name)}{name}Ev")
    function.restype = ctypes.c_size_t
    return function()


def figure(name):
    DEVICE.cuda.cudasim_card_figure.restype = ctypes.c_double
    return DEVICE.cuda.cudasim_card_figure(0, name.encode())


def test_the_cards_figures_are_pytorchs():
    torch.zeros(1, device="cuda")
    assert torchs("getChosenWorkspaceSize") == CUBLAS
    assert figure("cublas_workspace_bytes") == CUBLAS
    assert figure("cublaslt_workspace_bytes") == torchs(
        "getCUDABlasLtWorkspaceSize"
    )


_FIRST_PRODUCT = """
from tests.simulator.cudasim.operator_bridge import simulated
simulated.load(memory="1GiB", CUDASIM_CARD="h200")
import torch
x = torch.zeros(64, 64, device="cuda")
for when in ("captured", "before"):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            x @ x
    except RuntimeError as error:
        print("cublasCreate" in str(error.__context__),
              "previous error during capture" in str(error))
    else:
        print("captured")
    x @ x
"""


def test_a_capture_forbids_the_first_product():
    """As on a GPU (pytorch 99397): cublasCreate allocates."""
    done = programs.run("-c", _FIRST_PRODUCT)
    assert done.stdout.split() == ["True", "True", "captured"], (
        done.stdout, done.stderr)


def test_a_workspace_is_kept_per_thread_and_stream():
    x = torch.zeros(64, 64, device="cuda")
    before = allocated()
    x @ x
    assert allocated() - before == CUBLAS
    x @ x
    assert allocated() - before == CUBLAS
    with torch.cuda.stream(torch.cuda.Stream()):
        x @ x
    assert allocated() - before == 2 * CUBLAS

    def other():
        torch.mm(x, x)

    for _ in range(2):  # the second takes over the first one's handle
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        # Python's join may return before the thread has given its handle back.
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            os.sched_yield()
        assert allocated() - before == 3 * CUBLAS
    torch._C._cuda_clearCublasWorkspaces()
    assert allocated() == before


def test_a_bias_takes_cublaslts():
    x = torch.zeros(64, 64, device="cuda")
    bias = torch.zeros(64, device="cuda")
    before = allocated()
    functional.linear(x, x, bias)
    assert allocated() - before == CUBLAS + figure("cublaslt_workspace_bytes")


def test_backward_has_its_own():
    x = torch.zeros(64, 64, device="cuda", requires_grad=True)
    y = x @ x
    before = allocated()
    y.sum().backward()
    assert allocated() - before >= CUBLAS
    x.grad = None


def peak_of(step):
    """Bytes above what was there and what stays."""
    torch.cuda.reset_peak_memory_stats()
    result = step()
    return torch.cuda.max_memory_allocated() - allocated(), result


def test_a_convolution_takes_one_for_its_length():
    image = torch.randn(1, 8, 256, 256, device="cuda")
    weight = torch.randn(8, 8, 3, 3, device="cuda")
    taken, out = peak_of(lambda: functional.conv2d(image, weight, padding=1))
    assert taken >= image.nbytes
    expected = functional.conv2d(image.cpu(), weight.cpu(), padding=1)
    assert torch.allclose(out.cpu(), expected, atol=1e-4)
    # Nothing for a kernel that needs none.
    assert peak_of(lambda: image + 1)[0] == 0


def test_a_long_sort_takes_another_buffer():
    long = torch.zeros(1 << 16, device="cuda")
    assert peak_of(lambda: torch.sort(long))[0] == long.numel() * (4 + 16)
    short = torch.zeros(16, 4096, device="cuda")
    assert peak_of(lambda: torch.sort(short))[0] == 0
