# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's wheels want is implemented or refused; the table says which."""

import ctypes
import os
import re
import unittest

from tests.simulator.cudasim.coverage import table

FOLDER = "tests/simulator/cudasim"
DATA = table.needed()
DEVICE = table.Device(FOLDER)


# Entry points of kernels, whose refusal is a launch without a twin.
_KERNEL = re.compile(r"(__)?cu(da)?Launch(?!HostFunc)")


def _read(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as stream:
        return stream.read()


class Coverage(unittest.TestCase):
    def test_nothing_wanted_is_missing(self):
        for kind in ("runtime", "driver"):
            missing = [
                name
                for name in DATA[kind]
                if DEVICE.state(kind, name) is None
            ]
            self.assertEqual(missing, [], kind)

    def test_all_five_minors_are_in_the_data(self):
        self.assertEqual(
            sorted(DATA["wheels"]), ["2.11", "2.12", "2.13", "2.14", "2.15"]
        )
        for minor in DATA["wheels"]:
            wanted = [
                name
                for name, entry in DATA["runtime"].items()
                if minor in entry["minors"]
            ]
            self.assertGreater(len(wanted), 90, minor)

    def test_runtime_symbols_carry_the_version_that_wheels_ask_for(self):
        wrong = {
            name: version
            for name, version in DEVICE.exports["runtime"].items()
            if table.LIBRARIES["runtime"] not in (name, version)
        }
        self.assertEqual(wrong, {})

    def test_the_driver_hands_out_every_wanted_function(self):
        address = ctypes.c_void_p()
        version = ctypes.c_int()
        DEVICE.driver.cuDriverGetVersion(ctypes.byref(version))
        lost = []
        for name in DATA["driver"]:
            plain = re.sub(r"_v\d+$", "", name).encode()
            status = DEVICE.driver.cuGetProcAddress_v2(
                plain, ctypes.byref(address), version, ctypes.c_uint64(0), None
            )
            if status != 0 or not address.value:
                lost.append(name)
        self.assertEqual(lost, [])

    def test_function_newer_than_the_version_asked_for_is_not_handed_out(self):
        address, status = ctypes.c_void_p(), ctypes.c_int()
        for version, found in ((13000, False), (13010, False), (13020, True)):
            self.assertEqual(DEVICE.driver.cuGetProcAddress_v2(
                b"cuGraphNodeGetParams", ctypes.byref(address), version,
                ctypes.c_uint64(0), ctypes.byref(status)), 0)
            self.assertEqual((bool(address.value), status.value),
                             (found, 0 if found else 2), version)

    def test_what_refuses_answers_its_code_and_is_counted(self):
        driver = DEVICE.driver
        driver.cudasim_refused_calls.restype = ctypes.c_long
        missing = driver.cudasim_launches_without_twin
        missing.restype = ctypes.c_long
        libraries = {"runtime": DEVICE.runtime, "driver": driver}
        for kind, library in libraries.items():
            for name in DEVICE.exports[kind]:
                code = driver.cudasim_refusal(name.encode())
                if code == 0:
                    continue
                before = driver.cudasim_refused_calls()
                launches = missing()
                self.assertEqual(getattr(library, name)(), code, name)
                self.assertEqual(driver.cudasim_refused_calls(), before + 1)
                self.assertEqual(
                    missing() - launches, bool(_KERNEL.match(name)), name
                )
                self.assertIn(code, (1, 219, 221, 801), name)
                last = DEVICE.runtime.cudaGetLastError()
                driver.cudasim_clear_errors()
                # The driver leaves the runtime's last error alone, but a launch
                # breaks the device.
                seen = kind == "runtime" or _KERNEL.match(name)
                self.assertEqual(last, code if seen else 0, name)
        text = ctypes.create_string_buffer(1 << 16)
        driver.cudasim_refused_names(text, len(text))
        self.assertIn(b"cuLinkCreate_v2 1", text.value)

    def test_the_table_is_current(self):
        how = "run: bazel run //tests/simulator/cudasim/coverage:table"
        self.assertEqual(
            _read("COVERAGE.md"), table.page(DATA, DEVICE), how
        )
        readme = _read("README.md")
        self.assertEqual(
            readme, table.with_totals(readme, DATA, DEVICE), how
        )


if __name__ == "__main__":
    unittest.main()
