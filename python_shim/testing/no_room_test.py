# SPDX-License-Identifier: Apache-2.0
"""A process whose libraries left no room for the core's thread-locals."""

import os
import shutil
import subprocess
import sys

_HOG = os.path.abspath("python_shim/testing/libthread_locals_hog.so")
_MOST = 100
_PROGRAM = """
import ctypes, os, sys
from stratalloc import simulate
simulate.load(1 << 26)
import torch, stratalloc
hogs = 0
while os.path.exists(f"{sys.argv[1]}/{hogs}.so"):
    try:
        ctypes.CDLL(f"{sys.argv[1]}/{hogs}.so")
    except OSError as error:
        assert "static TLS" in str(error), error
        break
    hogs += 1
print(hogs)
try:
    print(stratalloc.enable())
except RuntimeError as error:
    print(error)
print(torch.ones(3, device="cuda").sum().item())
"""


def _run(place, hogs, **more):
    """(hogs that found room, what enable() said); at most `hogs` are there."""
    place.mkdir()
    for number in range(hogs):
        shutil.copy(_HOG, place / f"{number}.so")
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(place)],
                          capture_output=True, text=True, check=False,
                          env=dict(os.environ, **more))
    assert done.returncode == 0, done.stderr
    found, said, total = done.stdout.splitlines()
    assert total == "3.0", "torch goes on, with whichever allocator"
    return int(found), said


def test_it_says_what_to_do_and_that_helps(tmp_path):
    hogs, said = _run(tmp_path / "full", _MOST)
    assert 0 < hogs < _MOST
    advice = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=2048"
    assert said.startswith("stratalloc: ") and said.endswith(advice)
    name, _, value = advice.partition("=")
    assert _run(tmp_path / "again", hogs, **{name: value}) == (hogs, "True")
