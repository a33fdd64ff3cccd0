# SPDX-License-Identifier: Apache-2.0
"""For tests: waiting for what another process does, which tells nobody."""

import time


def until(holds, seconds):
    """Asks again and again; fails if it does not hold after `seconds`, which
    is when the process is given up as hanging."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(.01)
