# SPDX-License-Identifier: Apache-2.0
"""How much of a process's room for thread-locals the core takes.

libstratalloc.so reads its thread-locals at fixed distances from the thread's
register, so all of them must fit into what glibc keeps for shared objects
that are opened late (1664 bytes in most versions), beside other libraries'.
"""

import os
import struct
import unittest

_PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                     "libstratalloc.so")
_MOST_BYTES = 320
_TLS = 7  # PT_TLS, elf.h


def thread_local_bytes(path):
    """p_memsz of the segment of thread-locals of a 64-bit ELF file."""
    with open(path, "rb") as file:
        header = file.read(64)
        table, = struct.unpack_from("<Q", header, 32)
        entry_bytes, entries = struct.unpack_from("<HH", header, 54)
        for index in range(entries):
            file.seek(table + index * entry_bytes)
            entry = struct.unpack("<IIQQQQQQ", file.read(56))
            if entry[0] == _TLS:
                return entry[6]
    return 0


class ThreadLocalsTest(unittest.TestCase):

    def test_they_fit_where_little_room_is_left(self):
        size = thread_local_bytes(_PATH)
        self.assertGreater(size, 0, "no thread-locals found: a broken test")
        self.assertLessEqual(
            size, _MOST_BYTES,
            "keep large ones behind a pointer (allocator/base/thread_local.h)")


if __name__ == "__main__":
    unittest.main()
