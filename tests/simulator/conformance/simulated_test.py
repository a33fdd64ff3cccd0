# SPDX-License-Identifier: Apache-2.0
"""The simulated device does what CUDA does, as far as the suite looks."""

import json
import os
import re
import subprocess
import tempfile
import unittest

PROGRAM = os.path.abspath("tests/simulator/conformance/conformance")
LIBRARIES = os.path.abspath("tests/simulator/cudasim")
DRIVER = os.path.join(LIBRARIES, "libcuda.so.1")
LENIENT = os.path.abspath("tests/simulator/conformance/liblenient_driver.so")
# Host functions wait there for the program: no order of an eager device.
ASYNCHRONOUS = ("streams", "events")


def conform(*arguments, driver=DRIVER, **settings):
    """Exit status, what the JSON says, and the output."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CUDASIM_")
    }
    for name, value in settings.items():
        environment["CUDASIM_" + name] = value
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "conformance.json")
        done = subprocess.run(
            [
                PROGRAM,
                "--cuda", driver,
                "--cudart", os.path.join(LIBRARIES, "libcudart.so.13"),
                "--json", out,
                *arguments,
            ],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=300, check=False,
        )
        with open(out, encoding="utf-8") as file:
            return done.returncode, json.load(file), done.stdout


class SimulatedTest(unittest.TestCase):
    def _agrees(self, *arguments, **settings):
        code, result, output = conform("--strict", *arguments, **settings)
        wrong = [
            f"{each['id']}: expected {each['expected']}, got {each['actual']}"
            for each in result["checks"]
            if not each["ok"] and each["kind"] != "skip"
        ]
        self.assertEqual(wrong, [])
        self.assertEqual(code, 0, output[-2000:])
        self.assertTrue(result["ok"])
        return result

    def test_eager(self):
        without = [
            word for area in ASYNCHRONOUS
            for word in ("--without", area)
        ]
        result = self._agrees(*without, DEVICES="2")
        self.assertGreater(result["all"]["documented"], 700)
        self.assertEqual(result["facts"]["devices"], "2")

    def test_async(self):
        for seed in ("1", "2", "3"):
            with self.subTest(seed=seed):
                self._agrees(DEVICES="2", MODE="async", SEED=seed)

    def test_one_device_skips_by_name(self):
        result = self._agrees("--area", "copies")
        skipped = [c["id"] for c in result["checks"] if c["kind"] == "skip"]
        self.assertEqual(skipped, ["copies.between_devices.two_devices"])

    def test_a_difference_is_seen(self):
        # A device that runs out of memory too early.
        code, result, output = conform(
            "--area", "virtual_memory", FAIL="cuMemCreate:4:2"
        )
        self.assertEqual(code, 1)
        self.assertFalse(result["ok"])
        self.assertRegex(output, r"DIFFERS +virtual_memory\.")

    def test_a_known_answer_of_a_driver_holds(self):
        id_ = "virtual_memory.properties_of_a_handle.released"
        code, result, output = conform(
            "--area", "virtual_memory", driver=LENIENT
        )
        self.assertEqual(code, 0, output[-2000:])
        self.assertEqual(result["all"]["known"], 1)
        self.assertEqual(result["all"]["unverified_differ"], 0)
        self.assertEqual(
            [check["id"] for check in result["checks"] if check["known"]], [id_]
        )
        self.assertRegex(output, rf"(?m)^ok \(known\) +{id_}$")

    def test_strictly_a_known_answer_of_a_driver_differs(self):
        code, result, output = conform(
            "--area", "virtual_memory", "--strict", driver=LENIENT
        )
        self.assertEqual(code, 1)
        self.assertEqual(result["all"]["known"], 0)
        self.assertRegex(
            output, r"DIFFERS \(unverified\) virtual_memory\.properties_of_a_"
            r"handle\.released: expected CUDA_ERROR_INVALID_VALUE \(1\), got"
        )

    def test_a_crash_costs_one_area(self):
        # Without pinned memory the first case writes to a null pointer.
        code, result, output = conform(
            "--area", "errors", "--area", "copies",
            FAIL="cudaMallocHost:1:2:forever",
        )
        self.assertEqual(code, 1)
        self.assertEqual(result["areas"]["copies"]["died"], 1)
        self.assertIn("DIED", output)
        self.assertEqual(result["areas"]["errors"]["documented_differ"], 0)
        self.assertGreater(result["areas"]["errors"]["documented"], 200)

    def test_readme_counts(self):
        _, result, _ = conform(DEVICES="2", MODE="async")
        with open("tests/simulator/conformance/README.md", encoding="utf-8") as file:
            rows = dict(
                (area, (int(documented), int(unverified)))
                for area, documented, unverified in re.findall(
                    r"^\| `(\w+)` \|.*\| (\d+) \| (\d+) \|$",
                    file.read(), re.MULTILINE,
                )
            )
        counted = {
            area: (counts["documented"], counts["unverified"])
            for area, counts in result["areas"].items()
        }
        self.assertEqual(rows, counted)


if __name__ == "__main__":
    unittest.main()
