# SPDX-License-Identifier: Apache-2.0
"""Training under a preloaded jemalloc (Debian's package libjemalloc2).

It replaces malloc for all libraries, takes of the room that the loader has for
thread-local variables, and has fork handlers of its own.
"""

from tests.system.e2e import running
from tests.system.e2e.environments import starting


def test_training_under_a_preloaded_jemalloc(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("""
import ctypes
import json
import os

from tests.system.e2e.environments.programs import too_large

libc = ctypes.CDLL(None)
version = ctypes.c_char_p()
code = libc.mallctl(b"version", ctypes.byref(version),
                    ctypes.byref(ctypes.c_size_t(8)), None, ctypes.c_size_t(0))
assert code == 0 and version.value, "malloc is not jemalloc's"

facts = too_large.of_this_process()
child = os.fork()
if child == 0:
    os._exit(len(bytes(1 << 20)) != 1 << 20)
facts["child"] = os.waitpid(child, 0)[1]
print(json.dumps(facts))
""")
    done = running.python(
        "-m", "stratalloc", "run", *starting.device(), "--conf",
        starting.settings("host_budget:16MiB,disk_budget:256MiB,"
                          "disk_codec:zstd,telemetry:events"), path,
        fresh=True, LD_PRELOAD="libjemalloc.so.2")
    facts = starting.trained(done)
    assert facts["child"] == 0
    assert facts["to_disk"] > 0 and facts["from_disk"] > 0, facts
    assert "ld.so" not in done.stderr, done.stderr
