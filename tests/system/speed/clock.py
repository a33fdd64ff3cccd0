# SPDX-License-Identifier: Apache-2.0
"""Virtual time and bytes of the simulated device, as a job reads them.

Thread-safety: every function may be called by any thread; all threads of the
program share one virtual clock.
Lifetime: valid from simulate.load() on.
Errors: none; without a card every time is 0.
Invariants: no function reads a real clock.
"""

import ctypes

# What cudasim_virtual_total counts; the values of one snapshot.
_IN, _OUT, _BUSY = b"h2d_bytes", b"d2h_bytes", b"compute_busy_ns"


def driver():
    """The control functions of the device, with their types declared."""
    from stratalloc import simulate

    found = simulate.driver()
    found.cudasim_virtual_now_ns.restype = ctypes.c_int64
    found.cudasim_virtual_total.restype = ctypes.c_double
    found.cudasim_virtual_total.argtypes = (ctypes.c_char_p,)
    found.cudasim_pinned.restype = ctypes.c_uint64
    return found


def now():
    """Nanoseconds of the program's virtual clock."""
    return driver().cudasim_virtual_now_ns()


def pinned():
    """Bytes of host memory that are pinned at this moment."""
    return driver().cudasim_pinned()


def bus():
    """Bytes per second from the host to the device, and back."""
    figure = driver().cudasim_card_figure
    return tuple(figure(0, name) * 1e9 for name in (
        b"pcie_up_gb_per_s", b"pcie_down_gb_per_s"))


class Passes:
    """Time, bytes and pinned memory of each pass that was measured.

    with passes: one pass, which ends when the device is idle.
    """

    def __init__(self):
        self.rows = []
        self._driver = driver()
        self._began = None

    def __enter__(self):
        self._began = self._read()
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return
        import torch

        torch.cuda.synchronize()
        ended = self._read()
        self.rows.append({name: ended[name] - self._began[name]
                          for name in ended} | {"pinned": pinned()})

    def _read(self):
        total = self._driver.cudasim_virtual_total
        return {"ns": self._driver.cudasim_virtual_now_ns(),
                "in": int(total(_IN)), "out": int(total(_OUT)),
                "busy_ns": total(_BUSY)}


def steady(rows, warm_up):
    """The means of the passes behind the warm-up."""
    late = rows[warm_up:]
    return {name: sum(row[name] for row in late) / len(late)
            for name in late[0]}
