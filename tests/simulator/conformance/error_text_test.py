# SPDX-License-Identifier: Apache-2.0
"""Every error code's name and text, beside CUDA's own runtime library: the one
thing the real one answers on a machine without a GPU."""

import ctypes
import glob
import importlib.util
import os

CODES = range(-2, 1100)
# The simulated runtime is that of CUDA 13.2; PyTorch's up to 2.14 is of 13.0 and
# does not know these yet.
SINCE_13_2 = {
    10: ("cudaErrorVersionTranslation",
         "Driver is newer than runtime and returned parameters the runtime "
         "cannot process"),
    917: ("cudaErrorStreamDetached",
          "API call not permitted since the green context associated with the "
          "stream has been destroyed"),
}


def texts(path):
    library = ctypes.CDLL(path)
    for function in (library.cudaGetErrorName, library.cudaGetErrorString):
        function.restype = ctypes.c_char_p
    return {
        code: (library.cudaGetErrorName(code).decode(),
               library.cudaGetErrorString(code).decode())
        for code in CODES
    }


def _known(found):
    return {code for code, (name, _) in found.items()
            if name != "unrecognized error code"}


def version(path):
    number = ctypes.c_int()
    ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(number))
    return number.value


def test_names_and_texts_are_those_of_the_real_runtime():
    (place,) = importlib.util.find_spec("nvidia").submodule_search_locations
    (real,) = glob.glob(os.path.join(place, "cu13", "lib", "libcudart.so.13"))
    folder = os.environ.get("CUDASIM_LIBRARIES", "tests/simulator/cudasim")
    ctypes.CDLL(os.path.abspath(os.path.join(folder, "libcuda.so.1")))
    ours = os.path.abspath(os.path.join(folder, "libcudart.so.13"))
    simulated = texts(ours)
    expected = texts(real)
    if version(real) < version(ours):
        assert not SINCE_13_2.keys() & _known(expected)
        expected |= SINCE_13_2
    assert len(_known(expected)) > 100
    assert simulated == expected
