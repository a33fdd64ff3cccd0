# SPDX-License-Identifier: Apache-2.0
"""ctypes face of libstratalloc_bench_torch_2_N.so: what is measured in C++.

The functions are those of python_shim/torch_bridge/bench. load() comes between
`import torch` and enable(): the operators that the library defines are to be
there when the guard looks for operators.
"""

import ctypes
import os

from stratalloc._native import bridge as _bridge
from stratalloc._native import core as _core

_lib = None


def load(torch):
    global _lib
    _bridge.load(torch.__version__)  # a bridge of another minor is refused here
    name = _bridge.bridge_name(torch.__version__).replace(
        "stratalloc_", "stratalloc_bench_", 1)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if not os.path.exists(path):
        raise _core.missing(path)
    _lib = ctypes.CDLL(path)
    i32, u64, text = ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p
    number = ctypes.POINTER(ctypes.c_double)
    for symbol, arguments in (
        ("snapshot_ns", (i32, i32, number, number, text, i32)),
        ("account_pairs", (i32, i32, number, text, i32)),
        ("scoped_pairs", (i32, i32, number, text, i32)),
        ("follow_backward", (i32, text, i32)),
        ("prepare", (i32, u64, text, i32)),
        ("pairs", (i32, u64, i32, i32, number, text, i32)),
        ("handover", (i32, u64, i32, number, text, i32)),
        ("operations", (i32, ctypes.c_void_p, u64, u64, i32, i32, number, text,
                        i32)),
        ("operator_ns", (i32, i32, i32, number, ctypes.POINTER(i32), text, i32)),
    ):
        function = getattr(_lib, "stratalloc_bench_" + symbol)
        function.restype = i32
        function.argtypes = arguments
    _lib.stratalloc_bench_scopes_ns.restype = ctypes.c_double
    _lib.stratalloc_bench_scopes_ns.argtypes = (i32,)


def call(name, *arguments):
    """Calls stratalloc_bench_<name>; a failure is a RuntimeError."""
    _bridge.call_function(getattr(_lib, "stratalloc_bench_" + name), *arguments)


def scopes_ns(pairs):
    """Nanoseconds of a push and a pop of the core."""
    return _lib.stratalloc_bench_scopes_ns(pairs)
