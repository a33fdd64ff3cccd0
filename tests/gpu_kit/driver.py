# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver's virtual memory calls through ctypes, and a range on them.

For measurements only: no PyTorch allocator is involved, so that what is timed
is the driver. A context must be current (`torch.cuda.init()` leaves one).
"""

import ctypes

DEVICE = 1
HOST_NUMA = 3
_PINNED = 1
_READ_WRITE = 3


class DriverError(RuntimeError):
    """A driver call failed; says which and the driver's own name for it."""


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Flags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", _Flags),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


def _properties(kind, number):
    return _Properties(
        type=_PINNED, location=_Location(type=kind, id=number)
    )


class Driver:
    """Calls by name; a result other than 0 is a DriverError."""

    def __init__(self, library="libcuda.so.1"):
        self._library = ctypes.CDLL(library)

    def call(self, name, *args):
        function = getattr(self._library, name)
        status = function(*args)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'?').decode()}")

    def granularity(self, kind=DEVICE, number=0):
        size = ctypes.c_size_t()
        properties = _properties(kind, number)
        self.call("cuMemGetAllocationGranularity", ctypes.byref(size),
                  ctypes.byref(properties), 0)
        return size.value

    def reserve(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAddressReserve", ctypes.byref(address),
                  ctypes.c_size_t(size), ctypes.c_size_t(0),
                  ctypes.c_uint64(0), ctypes.c_ulonglong(0))
        return address.value

    def free(self, address, size):
        self.call("cuMemAddressFree", ctypes.c_uint64(address),
                  ctypes.c_size_t(size))

    def create(self, size, kind=DEVICE, number=0):
        handle = ctypes.c_uint64()
        properties = _properties(kind, number)
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size),
                  ctypes.byref(properties), ctypes.c_ulonglong(0))
        return handle.value

    def release(self, handle):
        self.call("cuMemRelease", ctypes.c_uint64(handle))

    def map(self, address, size, handle):
        self.call("cuMemMap", ctypes.c_uint64(address), ctypes.c_size_t(size),
                  ctypes.c_size_t(0), ctypes.c_uint64(handle),
                  ctypes.c_ulonglong(0))

    def set_access(self, address, size, *locations):
        """For (kind, number) pairs; device 0 when none is given."""
        locations = locations or ((DEVICE, 0),)
        access = (_Access * len(locations))(*[
            _Access(_Location(kind, number), _READ_WRITE)
            for kind, number in locations
        ])
        self.call("cuMemSetAccess", ctypes.c_uint64(address),
                  ctypes.c_size_t(size), access,
                  ctypes.c_size_t(len(locations)))

    def unmap(self, address, size):
        self.call("cuMemUnmap", ctypes.c_uint64(address),
                  ctypes.c_size_t(size))

    def copy(self, to, source, size):
        self.call("cuMemcpy", ctypes.c_uint64(to), ctypes.c_uint64(source),
                  ctypes.c_size_t(size))


class View:
    """Lets torch see `count` floats at an address: torch.as_tensor(View())."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<f4", "data": (address, False),
            "version": 3, "strides": None,
        }
