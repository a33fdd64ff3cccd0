# SPDX-License-Identifier: Apache-2.0
"""Versions that the probe asks of a system, and its functions called."""

import ctypes
import math
import os
import re
import subprocess
import tempfile
import unittest

from python_shim.wheel import platform_tag

_PROBE = os.path.abspath("tests/repository/floor/libfloor_probe.so")


class FloorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.probe = ctypes.CDLL(_PROBE)
        cls.probe.probe_log.restype = ctypes.c_double
        for name in ("probe_size", "probe_size_of_file"):
            getattr(cls.probe, name).restype = ctypes.c_int64

    def test_probe_runs_on_glibc_2_28(self):
        self.assertLessEqual(
            platform_tag.glibc(platform_tag.needs(_PROBE)), 28)

    def test_each_symbol_of_the_system_has_a_version(self):
        listed = subprocess.run(
            ["objdump", "-T", _PROBE], check=True, capture_output=True,
            text=True).stdout
        functions = re.findall(r"DF \*UND\*\s+[0-9a-f]+\s+(.*)", listed)
        self.assertGreater(len(functions), 20)
        self.assertEqual([name for name in functions
                          if not re.match(r"\(?(GLIBC|CXXABI|GCC)", name)], [])

    def test_nothing_of_the_floor_is_exported(self):
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", _PROBE], check=True,
            capture_output=True, text=True).stdout
        names = re.findall(r" [BDTW] (\S+)$", listed, re.MULTILINE)
        self.assertEqual(
            [name for name in names if not name.startswith("probe_")], [])

    def test_status_of_files(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"12345")
            file.flush()
            self.assertEqual(self.probe.probe_size(file.name.encode()), 5)
            self.assertEqual(self.probe.probe_size_of_file(file.fileno()), 5)
        self.assertEqual(self.probe.probe_size(b"/no/such/file"), -1)
        self.assertEqual(self.probe.probe_size_of_file(-1), -1)

    def test_wait_ends_by_notification_and_by_time(self):
        self.assertEqual(self.probe.probe_wait(60_000, True), 0)
        self.assertEqual(self.probe.probe_wait(1, False), 1)
        self.assertEqual(self.probe.probe_wait_without_limit(), 1)

    def test_text_of_a_stream(self):
        self.assertEqual(self.probe.probe_text(42), len("number 42"))
        self.assertEqual(self.probe.probe_taken_text(42), len("number 42"))
        self.assertEqual(self.probe.probe_number(b"21"), 42)

    def test_copied_exception_is_thrown_again(self):
        self.assertEqual(self.probe.probe_exception(3), 1)

    def test_negative_length_of_an_array_throws(self):
        self.assertEqual(
            self.probe.probe_bad_length(ctypes.c_int64(-1)), 1)

    def test_shared_pointers_count(self):
        self.assertEqual(self.probe.probe_shared(3), 2)

    def test_functions_of_older_versions(self):
        self.assertEqual(self.probe.probe_symbol(b"malloc"), 1)
        self.assertEqual(self.probe.probe_symbol(b"no_such_function"), 0)
        self.assertEqual(self.probe.probe_name(), 1)
        self.assertEqual(self.probe.probe_log(ctypes.c_double(math.e)), 1.0)


if __name__ == "__main__":
    unittest.main()
