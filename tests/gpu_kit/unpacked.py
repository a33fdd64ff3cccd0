# SPDX-License-Identifier: Apache-2.0
"""For tests: the kit, packed from what was built and unpacked somewhere else.

What is run there is given nothing of the checkout: no path to it, no settings.
REQUIRES: run from the root of the tree in which the kit's parts were built
(BUILD.bazel, `to_pack`).
"""

import glob
import json
import os
import subprocess
import sys
import tarfile

from tests.gpu_kit import pack


class Unpacked:
    """The kit in `folder`, which is empty before."""

    def __init__(self, folder):
        self.folder = str(folder)
        wheels = (glob.glob("python_shim/wheel/stratalloc-*.whl")
                  + glob.glob("tests/simulator/cudasim/package/stratalloc_cudasim-*.whl"))
        tar = os.path.join(self.folder, "gpu-kit.tar")
        pack.pack(pack.members(
            wheels, "test", "tests/simulator/conformance/conformance",
            "tests/gpu_kit/libstratalloc_parts.so"), tar)
        with tarfile.open(tar) as archive:
            archive.extractall(self.folder, filter="data")
        os.remove(tar)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def command(self, out, *arguments):
        return [self.path("gpu-kit", "run.sh"), out, *arguments]

    def environment(self, **more):
        values = {key: value for key, value in os.environ.items()
                  if not key.startswith(("STRATALLOC", "CUDASIM"))}
        values.pop("PYTHONPATH", None)
        return {**values, "PYTHON": sys.executable, **more}

    def run(self, out, *arguments, seconds, **more):
        """The ended process; `more` of the environment."""
        return subprocess.run(
            self.command(out, *arguments), cwd=self.folder, text=True,
            env=self.environment(**more), stdin=subprocess.DEVNULL,
            capture_output=True, check=False, timeout=seconds)

    def result(self, out):
        with open(self.path(out), encoding="utf-8") as file:
            return json.load(file)
