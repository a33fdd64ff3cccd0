# SPDX-License-Identifier: Apache-2.0
"""A module of the tests with the arguments that BUILD.bazel gives it."""

import os
import shlex
import subprocess
import sys


def test_all_of_it():
    command = shlex.split(os.environ["LONG_RUN"])
    done = subprocess.run([sys.executable, "-m", *command],
                          stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
