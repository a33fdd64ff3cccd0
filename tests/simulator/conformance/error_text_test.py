# SPDX-License-Identifier: Apache-2.0
"""Every error code's name and text, beside CUDA's own runtime library: the one
thing the real one answers on a machine without a GPU."""

import ctypes
import glob
import importlib.util
import os

CODES = range(-2, 1100)


def texts(path):
    library = ctypes.CDLL(path)
    for function in (library.cudaGetErrorName, library.cudaGetErrorString):
        function.restype = ctypes.c_char_p
    return {
        code: (library.cudaGetErrorName(code).decode(),
               library.cudaGetErrorString(code).decode())
        for code in CODES
    }


def test_names_and_texts_are_those_of_the_real_runtime():
    (place,) = importlib.util.find_spec("nvidia").submodule_search_locations
    (real,) = glob.glob(os.path.join(place, "cu13", "lib", "libcudart.so.13"))
    folder = os.environ.get("CUDASIM_LIBRARIES", "tests/simulator/cudasim")
    ctypes.CDLL(os.path.abspath(os.path.join(folder, "libcuda.so.1")))
    simulated = texts(
        os.path.abspath(os.path.join(folder, "libcudart.so.13"))
    )
    expected = texts(real)
    assert sum(name != "unrecognized error code"
               for name, _ in expected.values()) > 100
    assert simulated == expected
