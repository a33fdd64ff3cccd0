# SPDX-License-Identifier: Apache-2.0
"""A step and all that it started ends at its limit, and with the kit."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from tests.gpu_kit import place
from tests.gpu_kit import polled

_SECONDS = 60  # until something is given up as hanging

# A step that never ends, nor does what it starts; it writes both numbers.
_STEP = """
import os, signal, subprocess, sys
from tests.gpu_kit import place
place.end_with_the_kit()
child = subprocess.Popen(
    [sys.executable, "-c", "import signal; signal.pause()"],
    stdin=subprocess.DEVNULL)
print("it knows this much", flush=True)
with open("numbers.part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("numbers.part", "numbers")
signal.pause()
"""

_KIT = """
import sys
from tests.gpu_kit.place import Place
print(Place(sys.argv[1], sys.argv[1], "sim").run(["-c", sys.argv[2]], 1000))
"""


def _ends(number):
    """Has this process come to its end (a dead one that nobody waits for
    has)?"""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class PlaceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.place = place.Place(self.folder, self.folder, "sim")

    def _numbers(self):
        path = os.path.join(self.folder, "numbers")
        polled.until(lambda: os.path.exists(path), _SECONDS)
        with open(path, encoding="utf-8") as file:
            return [int(number) for number in file.read().split()]

    def test_a_killed_kit_leaves_nothing_behind(self):
        kit = subprocess.Popen(
            [sys.executable, "-c", _KIT, self.folder, _STEP],
            env={**os.environ, "PYTHONPATH": os.getcwd()})
        try:
            numbers = self._numbers()
            self.assertFalse(any(map(_ends, numbers)))
        finally:
            kit.kill()
            kit.wait()
        try:
            polled.until(lambda: all(map(_ends, numbers)), _SECONDS)
        finally:
            for number in numbers:
                if not _ends(number):
                    os.kill(number, signal.SIGKILL)

    def test_at_its_limit_all_of_it_ends_and_what_it_said_is_kept(self):
        with mock.patch.object(place, "_wait", self._wait_shortly):
            ran = self.place.run(["-c", _STEP], 1000)
        self.assertEqual(ran["exit"], "timeout")
        self.assertEqual(ran["output"], "it knows this much\n")
        polled.until(lambda: all(map(_ends, self._numbers())), _SECONDS)

    def _wait_shortly(self, process, seconds, wait=place._wait):
        """The limit comes once the step has started all of itself."""
        del seconds
        self._numbers()
        return wait(process, .5)

    def test_of_much_output_the_beginning_and_the_end_are_kept(self):
        ran = self.place.run(
            ["-c", "print('the cause' + 'x' * 50000 + 'the end')"], 60)
        self.assertTrue(ran["output"].startswith("the causexxx"))
        self.assertTrue(ran["output"].endswith("xxxthe end\n"))
        self.assertIn("\n... 38017 characters are left out ...\n",
                      ran["output"])
        self.assertLess(len(ran["output"]), 12100)
        self.assertEqual(place.shortened("abcde", 3, 2), "abcde")
        self.assertEqual(place.shortened("abcdef", 3, 2),
                         "abc\n... 1 characters are left out ...\nef")

    def test_nobodys_settings_are_measured(self):
        with mock.patch.dict(os.environ, {
                "STRATALLOC_CONF": "tiering:off", "PYTORCH_ALLOC_CONF": "x",
                "CUDASIM_MODE": "async"}):
            ran = self.place.run(
                ["-c", "import os; print(sorted(os.environ))"], 60,
                CUDASIM_CARD="t4")
        self.assertIn("CUDASIM_CARD", ran["output"])
        for name in ("STRATALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDASIM_MODE"):
            self.assertNotIn(name, ran["output"])


if __name__ == "__main__":
    unittest.main()
