# SPDX-License-Identifier: Apache-2.0
"""What a tracker did, in lines on stderr, if DEBUG is 1 when it is made.

Coloured on a terminal unless NO_COLOR is set. On stderr and without logging:
who sets DEBUG=1 wants to see them without configuring anything, and stdout is
the program's. A line that cannot be written is lost.
"""

import contextlib
import os
import sys

from stratalloc.compat._package import format_size

RED, GREEN, YELLOW, MAGENTA, CYAN = 31, 32, 33, 35, 36


def wanted():
    return os.environ.get("DEBUG") == "1"


def say(colour, tag, text):
    stream = sys.stderr
    with contextlib.suppress(OSError, ValueError, AttributeError):
        tag = f"[{tag}]"
        if stream.isatty() and not os.environ.get("NO_COLOR"):
            tag = f"\x1b[{colour}m{tag}\x1b[0m"
        stream.write(f"{tag} {text}\n")


def say_events(events):
    """Lines of what Accounts told."""
    for kind, device, size, site in events:
        say(RED if kind == "allocate" else GREEN, kind,
            f"{'+' if kind == 'allocate' else '-'}{format_size(size)} on "
            f"{device}{f' at {site}' if site else ''}")


def say_summary(devices, allocated, freed):
    for device in sorted(devices, key=str):
        say(CYAN, "summary", f"{device}: "
            f"{format_size(allocated.get(device, 0))} allocated, "
            f"{format_size(freed.get(device, 0))} freed")
