# SPDX-License-Identifier: Apache-2.0
"""ctypes face of parts.h: the product's own handles, checksum and slabs."""

import ctypes
import os

PLAIN, EACH, KEEP = 1, 2, 4  # of cycle()
MOST_RANGES = 64
_ERROR_BYTES = 1024
CALLS_IN_ORDER = ("create", "map", "access", "unmap", "release")
_BEFORE = ctypes.CFUNCTYPE(None, ctypes.c_int)
_NAME = "libstratalloc_parts.so"


class PartsError(RuntimeError):
    """The product's own sentence."""


class _Device(ctypes.Structure):
    _fields_ = [
        ("virtual_memory", ctypes.c_int), ("exportable", ctypes.c_int),
        ("rdma", ctypes.c_int), ("granularity", ctypes.c_uint64),
        ("open_ns", ctypes.c_double), ("probe_ns", ctypes.c_double),
        ("why", ctypes.c_char * _ERROR_BYTES),
    ]


class Times(ctypes.Structure):
    """Total nanoseconds of one cycle's calls; see parts.h."""

    CALLS = ("reserve", "create", "map", "access", "unmap", "release", "free")
    _fields_ = [(name, ctypes.c_double) for name in CALLS] + [
        ("used_by_access", ctypes.c_uint64), ("not_ready", ctypes.c_int64)]


class Parts:
    """The library, loaded; nothing of CUDA is touched before open()."""

    def __init__(self):
        folder = os.environ["KIT_FOLDER"]
        self._library = ctypes.CDLL(os.path.join(folder, _NAME))
        self._library.parts_free_bytes.restype = ctypes.c_uint64
        self._library.parts_checksum_on_host.restype = ctypes.c_uint64
        self._library.parts_payload_checksum.restype = ctypes.c_uint64
        self._error = ctypes.create_string_buffer(_ERROR_BYTES)

    def _call(self, name, *arguments):
        if getattr(self._library, "parts_" + name)(*arguments, self._error):
            raise PartsError(self._error.value.decode(errors="replace"))

    def use_clock(self, function):
        self._library.parts_use_clock(
            ctypes.cast(function, ctypes.c_void_p))

    def open(self):
        device = _Device()
        self._call("open", ctypes.byref(device))
        return {
            "virtual_memory": bool(device.virtual_memory),
            "exportable": bool(device.exportable), "rdma": bool(device.rdma),
            "granularity": device.granularity, "open_ns": device.open_ns,
            "probe_ns": device.probe_ns, "why": device.why.decode()}

    def cycle(self, size, mappings, flags=0):
        times = Times()
        self._call("cycle", ctypes.c_uint64(size), ctypes.c_int(mappings),
                   ctypes.c_int(flags), ctypes.byref(times))
        return times

    def before(self, function=None):
        """function(number of CALLS_IN_ORDER) before the first of each kind."""
        self._before = _BEFORE(function) if function else _BEFORE()
        self._library.parts_before(self._before)

    def free_bytes(self):
        return self._library.parts_free_bytes()

    def hold(self):
        address = ctypes.c_uint64()
        self._call("hold", ctypes.byref(address))
        return address.value

    def try_calls(self):
        text = ctypes.create_string_buffer(8192)
        self._library.parts_try(text, len(text))
        return answers(text.value.decode(errors="replace"))

    def try_at_exit(self, path):
        if self._library.parts_try_at_exit(os.fsencode(path)):
            raise PartsError("the C library registers nothing for the exit")

    def load_checksum(self):
        """Seconds and bytes of the card that its first launch takes."""
        ns, used = ctypes.c_double(), ctypes.c_uint64()
        self._call("load_checksum", ctypes.byref(ns), ctypes.byref(used))
        return ns.value / 1e9, used.value

    def checksums(self, addresses, size, stream):
        """Queues them; the results, valid once the stream is waited for."""
        count = len(addresses)
        results = ctypes.POINTER(ctypes.c_uint64)()
        self._call("checksums", (ctypes.c_uint64 * count)(*addresses),
                   ctypes.c_uint64(size), ctypes.c_int(count),
                   ctypes.c_uint64(stream), ctypes.byref(results))
        return results

    def checksum_on_host(self, address, size):
        return self._library.parts_checksum_on_host(
            ctypes.c_void_p(address), ctypes.c_uint64(size))

    def use_host_clock(self, checksummed):
        """The simulated device is told of every payload_checksum()."""
        self._library.parts_use_host_clock(
            ctypes.cast(checksummed, ctypes.c_void_p))

    def payload_checksum(self, address, size):
        """Of the host's bytes, as a chunk on disk has it."""
        return self._library.parts_payload_checksum(
            address, ctypes.c_uint64(size))

    def slab(self, size):
        """Seconds to make a slab of the host tier, and to end it."""
        return self._pair("slab", ctypes.c_uint64(size))

    def register(self, address, size):
        """Seconds to register memory with CUDA, and to take that back."""
        return self._pair("register", ctypes.c_void_p(address),
                          ctypes.c_uint64(size))

    def _pair(self, name, *arguments):
        made, ended = ctypes.c_double(), ctypes.c_double()
        self._call(name, *arguments, ctypes.byref(made), ctypes.byref(ended))
        return made.value / 1e9, ended.value / 1e9


def answers(text):
    """{call: what the driver said} of the lines that parts_try writes."""
    return dict(line.split(": ", 1) for line in text.splitlines() if line)
