# SPDX-License-Identifier: Apache-2.0
"""What every command of `stratalloc` ends with, refuses with and prints on.

Standard library only until something is printed, so that `run` costs the
script nothing.
"""

import contextlib
import os
import shutil
import sys

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CANNOT = 3


class UsageError(Exception):
    """What the user typed cannot be meant."""


class CannotRunError(Exception):
    """The machine or the installation lacks something."""


def size(option, text):
    """The bytes that an option's text means; UsageError if it means none."""
    from stratalloc.settings import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from None


def console():
    """A rich console: colours only on a terminal, none with NO_COLOR."""
    try:
        from rich.console import Console
    except ImportError:
        raise CannotRunError(
            "stratalloc: this command prints tables with the package rich, "
            "which is not installed; run `pip install rich`") from None
    plain = not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR"))
    return Console(file=sys.stdout, no_color=plain, highlight=False,
                   width=shutil.get_terminal_size((100, 24)).columns)


# More columns than any table has; rich would cut cells that are not wrapped.
_WHOLE = 1 << 14


def show(out, table):
    """Prints a table whole: a narrow terminal wraps its lines, a pipe takes
    them as they are, and no number is cut."""
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, out, "width", out.width)
        out.width = _WHOLE
        out.print(table, crop=False)
