# SPDX-License-Identifier: Apache-2.0
"""The unpacked kit: where its things are, and how a process of it is run.

The two wheels are unpacked into a folder of their own and put on the path of
every step; nothing is installed. A step is a session of its own with a time limit, at
which all of it is killed. Its standard input is a lifeline: nothing is ever
written there, and when the kit is gone, however that went, it ends
(end_with_the_kit).
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile

# Of the repository in a checkout, of gpu-kit/repository where it was unpacked.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
# Characters of output kept per step: what began it, and how it ended.
_HEAD, _TAIL = 4000, 8000
# What a step starts says so by these; nobody's settings are to be measured.
_CLEARED = ("STRATALLOC", "CUDASIM_", "PYTORCH_", "CUBLAS_WORKSPACE_CONFIG")


class Place:
    """The kit's files, and the environment of its processes."""

    def __init__(self, folder, work, device):
        self.folder = folder  # with the wheels and the programs
        self.work = work
        self.device = device
        self.site = os.path.join(work, "site")
        self.path = [self.site, ROOT]
        self.more = {}  # of the environment

    def unpack(self):
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.site)
        for name in ("stratalloc", "stratalloc_cudasim"):
            found = glob.glob(os.path.join(self.folder, name + "-*.whl"))
            if len(found) != 1:
                sys.exit(f"kit.py: {len(found)} wheels of {name} in "
                         f"{self.folder}, not one; `./dev gpu-kit` packs a kit "
                         "to unpack and run")
            with zipfile.ZipFile(found[0]) as archive:
                archive.extractall(self.site)
        self.more["KIT_CARD"] = self._card()

    def facts(self):
        """kit.json: what was packed."""
        return load(os.path.join(self.folder, "kit.json"))

    def file(self, name):
        return os.path.join(self.work, name)

    def simulated(self, name=""):
        return os.path.join(self.site, "stratalloc_cudasim", "lib", name)

    def _card(self):
        """The figures of the simulated card that steps compare with."""
        out = self.file("card.json")
        done = self.run(["-c", _WRITE_CARD, self.simulated("libcuda.so.1"),
                         out], 60, CUDASIM_CARD="h200")
        if done["exit"] != 0:
            sys.exit("kit.py: the simulated device does not say what its card "
                     f"is: {done['output']}")
        return out

    def run(self, arguments, seconds, **settings):
        """What became of `python3 arguments`."""
        began = time.monotonic()
        reader, writer = os.pipe()  # no child inherits the writer
        try:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.work, env=self._environment(settings), stdin=reader,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True)
            code, output = _wait(process, seconds)
        finally:
            os.close(reader)
            os.close(writer)
        return {"exit": code, "seconds": round(time.monotonic() - began, 1),
                "output": shortened(output.decode(errors="replace"), _HEAD,
                                    _TAIL)}

    def _environment(self, settings):
        values = {key: value for key, value in os.environ.items()
                  if not key.startswith(_CLEARED)}
        values.update(
            PYTHONPATH=os.pathsep.join(
                [*self.path, *filter(None, [values.get("PYTHONPATH")])]),
            PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1",
            HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
            TOKENIZERS_PARALLELISM="false", KIT_FOLDER=self.folder,
            KIT_WORK=self.work, KIT_SITE=self.site, **self.more)
        values.update(settings)
        return values


_WRITE_CARD = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
text = ctypes.create_string_buffer(1 << 16)
if driver.cudasim_profile(0, text, len(text)) < 0:
    sys.exit("no profile")
with open(sys.argv[2], "wb") as file:
    file.write(text.value)
"""


def _wait(process, seconds):
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        _kill(process)
        output, _ = process.communicate()
        return "timeout", output
    except BaseException:
        _kill(process)
        raise


def _kill(process):
    """All of a step: it is a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_with_the_kit():
    """In a step: it and all it has started are killed when the kit is gone."""
    def wait():
        os.read(0, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def shortened(text, head, tail):
    """The first and the last characters; what is between them is counted."""
    left_out = len(text) - head - tail
    if left_out <= 0:
        return text
    return (f"{text[:head]}\n... {left_out} characters are left out ...\n"
            f"{text[-tail:]}")


def load(path):
    """A file of JSON; {"error": why not} if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        return {"error": str(error)}
