# SPDX-License-Identifier: Apache-2.0
"""Loads the torch bridge over a core that only records.

load() comes before anything imports torch; it brings the simulated device and
its operator bridge along. Installing is the caller's: once per process.
"""

import ctypes
import os

from tests.simulator.cudasim.operator_bridge import simulated

_HERE = "python_shim/torch_bridge"


def _open(path):
    """From the build; BRIDGE_LIBRARIES names another root to look under."""
    root = os.environ.get("BRIDGE_LIBRARIES", "")
    return ctypes.CDLL(os.path.abspath(os.path.join(root, path)))


class Bridge:
    """The functions of install.h, op_guard.h and recording_core.h."""

    OUT_OF_MEMORY = 1
    CORRUPT = 7

    def __init__(self, core, library):
        self.core = core
        self.library = library
        text = ctypes.c_char_p
        core.recording_set_evictable.argtypes = [ctypes.c_uint64] * 2
        core.recording_set_evictable.restype = None
        core.recording_fail_operator.argtypes = [text, ctypes.c_int, text]
        core.recording_fail_operator.restype = None
        core.recording_set_room.argtypes = [ctypes.c_uint64] * 2
        core.recording_set_room.restype = None
        core.recording_enters.restype = ctypes.c_long
        core.recording_stream_records.restype = ctypes.c_long
        core.recording_pinned.restype = ctypes.c_long
        core.recording_unpinned.restype = ctypes.c_long
        library.stratalloc_torch_config_fraction.restype = ctypes.c_double
        library.stratalloc_torch_is_guarded.argtypes = [text]
        core.recording_say.argtypes = [text]
        core.recording_say.restype = None
        core.recording_told.argtypes = [text]
        self.enters = core.recording_enters
        self.open = core.recording_open

    def call(self, name, *arguments):
        """A function that reports (message, bytes); raises its message."""
        message = ctypes.create_string_buffer(2000)
        function = getattr(self.library, "stratalloc_torch_" + name)
        if function(*arguments, message, len(message)) != 0:
            raise RuntimeError(message.value.decode())

    def guarded(self, name):
        return self.library.stratalloc_torch_is_guarded(name.encode()) == 1

    def evictable(self, everything=True):
        self.core.recording_set_evictable(
            4096 if everything else 0, 1 << 62 if everything else 0
        )

    def fail(self, operator, code=CORRUPT, message="layer 'a.b': checksum"):
        self.core.recording_fail_operator(
            operator.encode(), code, message.encode()
        )

    def heal(self):
        self.fail("")

    def say(self, line):
        """Of each refusal, behind its message."""
        self.core.recording_say(line.encode())

    def told(self, name):
        """How often somebody heard that this operator was refused ("malloc":
        a block)."""
        return self.core.recording_told(name.encode())

    def room(self, room, most=0):
        """List operators beyond `room` bytes run in slices of no more; who
        enters with more than `most` is refused. 0 = no bound."""
        self.core.recording_set_room(room, most)

    def accesses(self, operator):
        """[(address, bytes, written)] of the operator's last call."""
        found, out = [], (ctypes.c_uint64 * 4)()
        while self.core.recording_access(operator.encode(), len(found), out):
            found.append((out[0], out[1], bool(out[2])))
        return found

    def hints(self):
        found = []
        while self.core.recording_hint(len(found)) >= 0:
            found.append(self.core.recording_hint(len(found)))
        return found


def load(operators=True, **settings):
    """The simulated device, torch, the recording core and the bridge.

    With operators=False torch keeps its own kernels for CUDA, which cannot
    run here, and the device is None.
    """
    device = None
    if operators:
        device = simulated.load(**settings)
    else:
        simulated.load_device()
    core = _open(_HERE + "/testing/libstratalloc.so")
    import torch  # pylint: disable=import-outside-toplevel

    minor = "_".join(torch.__version__.split(".")[:2])
    library = _open(f"{_HERE}/libstratalloc_torch_{minor}.so")
    return device, Bridge(core, library)
