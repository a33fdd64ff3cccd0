# SPDX-License-Identifier: Apache-2.0
"""ctypes face of libstratalloc_torch_2_N.so, the bridge for one torch minor.

The functions are those of python_shim/torch_bridge/allocator/install.h.

A bridge built for another minor can load without any error and then corrupt
memory, so the file is chosen by torch.__version__ and the library is asked
again which minor it was built for before anything is installed.
"""

import ctypes
import os
import re

from stratalloc._native import core as _core
from stratalloc._native import releases as _releases
from stratalloc._native.errors import UnsupportedTorchError

_OUT_OF_MEMORY = 2  # of entry_point.h

_lib = None
_path = None
_storages = None
_exchange = None


class Storage(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
                ("device", ctypes.c_int)]


def bridge_name(version):
    """File name of the bridge for a release of torch such as 2.11.0+cu130."""
    minor = _releases.minor_of(version).replace(".", "_")
    return f"libstratalloc_torch_{minor}.so"


def supported():
    """Torch minors this installation carries a bridge for, as "2.11"."""
    folder = os.path.join(_core.PACKAGE, "lib")
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        match = re.fullmatch(r"libstratalloc_torch_(\d+)_(\d+)\.so", name)
        if match:
            found.append(tuple(map(int, match.groups())))
    return ["%d.%d" % minor for minor in sorted(found)]


def requirement():
    """What pip is asked for: any torch with a bridge here; releases.py."""
    return _releases.requirement(supported())


def _reinstall_torch():
    return _releases.reinstallation(supported())


def require_supported(version):
    """Raises UnsupportedTorchError if there is no bridge for this torch."""
    minors = supported()
    minor = _releases.minor_of(version)
    if not minor:
        raise UnsupportedTorchError(f"{_releases.not_a_release(version)}: "
                                    f"install one, {_reinstall_torch()}")
    if minors and minor not in minors:
        raise UnsupportedTorchError(
            f"stratalloc: torch {version} has no bridge in this installation, "
            f"which has those of torch {', '.join(minors)}: install one of "
            f"these (pip install {requirement()}), or a stratalloc that has "
            "its bridge")


def _require_cuda(version):
    import torch

    if torch.version.cuda is None:
        raise UnsupportedTorchError(
            f"stratalloc: torch {version} is built without CUDA: install a "
            f"build that has it, {_reinstall_torch()}")


def load(version):
    """Loads the bridge for this torch; idempotent; torch is imported."""
    global _lib, _path
    if _lib is not None:
        return _lib
    require_supported(version)
    _require_cuda(version)
    path = _core.library_path(bridge_name(version))
    _core.lib()
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise UnsupportedTorchError(
            f"stratalloc: the bridge for torch {_releases.minor_of(version)} "
            f"does not load into torch {version}: {error}; install stratalloc "
            f"again, or PyTorch's own build of torch: {_reinstall_torch()}"
        ) from None
    try:
        _require_fit(lib, version)
        _declare(lib)
    except AttributeError as error:
        raise UnsupportedTorchError(
            f"stratalloc: {os.path.basename(path)} is of another version "
            f"({error}); install stratalloc again") from None
    _lib, _path = lib, path
    return lib


def _require_fit(lib, version):
    """UnsupportedTorchError if this bridge is not for this torch."""
    minor = _releases.minor_of(version)
    # Before any other symbol: another minor's file may lack some.
    built_for = "%d.%d" % divmod(lib.stratalloc_torch_built_for(), 100)
    if built_for != minor:
        raise UnsupportedTorchError(
            f"stratalloc: {bridge_name(version)} was built for torch "
            f"{built_for}, this is torch {version}; install stratalloc again")
    try:
        call_function(lib.stratalloc_torch_check)
    except RuntimeError as error:
        raise UnsupportedTorchError(
            f"stratalloc: the bridge for torch {minor} does not fit this "
            f"torch {version}: {error}; install PyTorch's own build of torch: "
            f"{_reinstall_torch()}") from None


def _declare(lib):
    """Argument types; every int result is 0, 1 or 2, see install.h."""
    i32, u64, text = ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p
    for symbol, arguments in (
        ("is_current", ()),
        ("install", (text, i32)),
        ("install_guard", (text, i32)),
        ("upgrade_plugin", (text, i32)),
        ("follow_coalescing", (text, i32)),
        ("native_init", (i32, text, i32)),
        ("cache_info", (i32, ctypes.POINTER(u64), text, i32)),
        ("call_enter", (text, ctypes.POINTER(ctypes.c_void_p), i32, i32, i32,
                        i32, ctypes.POINTER(ctypes.c_void_p), text, i32)),
    ):
        function = getattr(lib, "stratalloc_torch_" + symbol)
        function.restype = i32
        function.argtypes = arguments
    lib.stratalloc_torch_note_telemetry.restype = None
    lib.stratalloc_torch_note_telemetry.argtypes = ()
    # With the GIL: else another thread's `tensor.data = other` would come
    # between, and take away what is being looked at.
    global _storages, _exchange
    _storages = ctypes.PyDLL(lib._name).stratalloc_torch_storages
    _storages.restype = i32
    _storages.argtypes = (ctypes.c_void_p, ctypes.POINTER(Storage), i32,
                          ctypes.POINTER(i32), text, i32)
    _exchange = ctypes.PyDLL(lib._name).stratalloc_torch_exchange
    _exchange.restype = i32
    _exchange.argtypes = (ctypes.c_void_p, ctypes.c_void_p, text, i32)
    lib.stratalloc_torch_note_settings.restype = None
    lib.stratalloc_torch_note_settings.argtypes = ()
    lib.stratalloc_torch_call_leave.restype = i32
    lib.stratalloc_torch_call_leave.argtypes = (
        ctypes.c_void_p, ctypes.c_char_p, i32)


def loaded():
    return _lib is not None


def path():
    return _path


def lib():
    return _lib


def call(name, *arguments):
    """Calls stratalloc_torch_<name>; a failure is a RuntimeError.

    One that says that memory ran out is a torch.OutOfMemoryError.
    """
    call_function(getattr(_lib, "stratalloc_torch_" + name), *arguments)


def call_function(function, *arguments):
    """The same for any function that ends in (message, bytes)."""
    message = ctypes.create_string_buffer(2048)
    code = function(*arguments, message, len(message))
    if code == 0:
        return
    text = message.value.decode("utf-8", "replace")
    if code == _OUT_OF_MEMORY:
        import torch

        raise torch.OutOfMemoryError(text)
    raise RuntimeError(text or f"stratalloc: {function.__name__} failed")


def storages(tensor_impl):
    """[Storage] of a Tensor._cdata, without an operator; None: it has none."""
    out, count = (Storage * 8)(), ctypes.c_int()
    call_function(_storages, tensor_impl, out, len(out), ctypes.byref(count))
    if count.value < 0:
        return None
    assert count.value <= len(out), "a tensor of more parts than torch's have"
    return out[:count.value]


def exchange(tensor_impl, other_impl):
    """The storages of two Tensor._cdata have each other's memory."""
    call_function(_exchange, tensor_impl, other_impl)


def install():
    call("install")


def install_guard():
    call("install_guard")


def is_current():
    return bool(_lib.stratalloc_torch_is_current())


def pluggable(torch):
    """torch's pluggable wrapper around our C functions.

    When CUDA initialises, the wrapper calls our init function, which puts the
    full allocator into torch's place before the first block exists.
    """
    wrapper = torch.cuda.memory.CUDAPluggableAllocator(
        _path, "stratalloc_malloc", "stratalloc_free")
    init = ctypes.cast(_lib.stratalloc_pluggable_init, ctypes.c_void_p)
    wrapper.allocator().set_init_fn(init.value)
    return wrapper
