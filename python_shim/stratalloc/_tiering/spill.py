# SPDX-License-Identifier: Apache-2.0
"""SpillFile: tensors of host memory in an unnamed file, without a device.

The disk tier of evicted memory (tiering/io), for programs that have no GPU or
no allocator of ours: the same file, the same checksums, the same codecs. It
needs neither CUDA nor enable(); the core is loaded by the first file.
"""

import ctypes
import operator
import os

from stratalloc import settings
from stratalloc import sizes
from stratalloc._native import core as _core


class SpillFile:
    """A file of at most `quota` bytes in `directory`, gone with the process.

    Args:
      directory: must exist and be writable; None for $TMPDIR, else /tmp.
      quota: bytes, or text as "2 GiB". None: half of the free disk, at most
        64 GiB.
      codec: "off", "lz4" or "zstd": how what is written is compressed, where
        that saves a sixteenth or more.

    ValueError: an argument is none of these. RuntimeError: no file can be made
    there; the message has the directory and the cause.

    An open file has at most 18 MiB of host memory to work with: 8 for what does
    not lie on whole pages, and 10 once something is compressed. RuntimeError
    where that is not to be had.

    Thread-safe; one call at a time has the file. In the child of a fork every
    call is a RuntimeError but close(), which closes the child's descriptors.
    A context manager.
    """

    def __init__(self, directory=None, quota=None, codec="off"):
        self._file = ctypes.c_void_p()
        where = settings.default_disk_dir() if directory is None else (
            os.fspath(directory))
        if quota is None:
            quota = settings.default_disk_budget(where)
        error = _core.Error()
        _core.check(_lib().stratalloc_spill_open(
            os.fsencode(where), _quota(quota), str(codec).encode(),
            ctypes.byref(self._file), ctypes.byref(error)), error)

    def write(self, tensor):
        """A ticket for the bytes of `tensor`'s untyped storage, all of them.

        `tensor`: a tensor or an untyped storage on the CPU, of any dtype, length
        and alignment; nobody may change it meanwhile. ValueError: it is on
        another device. RuntimeError: the quota has no room for it, or the disk
        failed; nothing is kept of it then.
        """
        storage, address, size = _bytes_of(tensor)
        ticket, error = ctypes.c_uint64(), _core.Error()
        _core.check(_lib().stratalloc_spill_write(
            self._file, address, size, ctypes.byref(ticket),
            ctypes.byref(error)), error)
        del storage  # it lived until here
        return ticket.value

    def read(self, ticket, tensor):
        """Puts back what write() took, bit for bit, into `tensor`'s storage.

        The ticket stays. ValueError: there is no such ticket, or the storage
        has another length than what was written. RuntimeError: the disk failed,
        or what came back is not what was written; the storage may have some of
        it then.
        """
        storage, address, size = _bytes_of(tensor)
        error = _core.Error()
        _core.check(_lib().stratalloc_spill_read(
            self._file, _ticket(ticket), address, size, ctypes.byref(error)),
            error)
        del storage

    def free(self, ticket):
        """Gives up what write() took. ValueError: there is no such ticket."""
        error = _core.Error()
        _core.check(_lib().stratalloc_spill_free(
            self._file, _ticket(ticket), ctypes.byref(error)), error)

    @property
    def used(self):
        """Bytes of what is held."""
        return self._count()[0]

    @property
    def stored(self):
        """Bytes of the quota that it takes: compressed, with its headers."""
        return self._count()[1]

    @property
    def written(self):
        """Bytes that were ever written, before they were compressed."""
        return self._count()[2]

    def _count(self):
        numbers = [ctypes.c_uint64() for _ in range(3)]
        _lib().stratalloc_spill_count(
            self._file, *(ctypes.byref(number) for number in numbers))
        return [number.value for number in numbers]

    def close(self):
        """Closes the file, once others are done with it: what it holds is gone,
        no descriptor is left. Again is nothing; later calls are a
        RuntimeError."""
        _lib().stratalloc_spill_close(self._file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_file", None):
            _lib().stratalloc_spill_delete(self._file)


def _lib():
    """The core, told what the functions of c_api/spill.h take."""
    lib = _core.lib()
    if lib.stratalloc_spill_delete.argtypes is None:
        error = ctypes.POINTER(_core.Error)
        file, text, u64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64
        number = ctypes.POINTER(u64)
        for name, *arguments in (
                ("open", text, u64, text, ctypes.POINTER(file), error),
                ("write", file, ctypes.c_void_p, u64, number, error),
                ("read", file, u64, ctypes.c_void_p, u64, error),
                ("free", file, u64, error),
                ("count", file, number, number, number),
                ("close", file),
                ("delete", file)):  # the last: others wait for it
            getattr(lib, "stratalloc_spill_" + name).argtypes = arguments
    return lib


def _quota(quota):
    try:
        size = (sizes.parse_size(quota) if isinstance(quota, str)
                else operator.index(quota))
    except (TypeError, ValueError) as error:
        raise ValueError(f"stratalloc: a spill file's quota of {quota!r}: "
                         f"{error}") from None
    if not 0 <= size < 1 << 63:
        raise ValueError(f"stratalloc: a spill file's quota of {quota!r} is no "
                         "number of bytes")
    return size


def _ticket(ticket):
    try:
        number = operator.index(ticket)
    except TypeError:
        number = -1
    if not 0 < number < 1 << 64:
        raise ValueError(f"stratalloc: {ticket!r} is no ticket of a spill file")
    return number


def _bytes_of(tensor):
    """(storage, address, bytes); the storage keeps them alive."""
    of_tensor = getattr(tensor, "untyped_storage", None)
    try:
        storage = tensor if of_tensor is None else of_tensor()
        device, size = storage.device, storage.nbytes()
    except (AttributeError, RuntimeError) as error:
        raise ValueError(
            f"stratalloc: a {type(tensor).__name__} has no storage to spill: "
            f"{error}") from None
    if device.type != "cpu":
        raise ValueError(
            f"stratalloc: a spill file takes host memory, and this is on "
            f"{device}: move it to the CPU, or evict() it")
    return storage, ctypes.c_void_p(storage.data_ptr()), size
