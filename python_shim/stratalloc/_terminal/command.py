# SPDX-License-Identifier: Apache-2.0
"""What every command of `stratalloc` ends with, refuses with and prints on.

Standard library only until something is printed, so that `run` costs the
script nothing.
"""

import argparse
import contextlib
import os
import sys

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CANNOT = 3
EXIT_UNKNOWN = 4


program_error = None  # the exception that the program of `run` ended with


class UsageError(Exception):
    """What the user typed cannot be meant."""


class CannotRunError(Exception):
    """The machine or the installation lacks something."""


def refuse_forbidden(command):
    """CannotRunError where STRATALLOC=0 keeps what `command` is about."""
    from stratalloc._native import state as _state

    if _state.forbidden():
        raise CannotRunError(
            f"stratalloc {command}: STRATALLOC=0 in the environment keeps "
            "PyTorch's allocator; unset it")


def import_torch():
    """torch; CannotRunError where it cannot be imported."""
    try:
        import torch
    except ImportError as error:
        raise no_torch(error) from None
    return torch


def no_torch(error):
    """The CannotRunError for a torch that cannot be imported."""
    from stratalloc._native import bridge as _bridge

    return CannotRunError(
        f"stratalloc: torch cannot be imported ({error}); run `pip install "
        f"{_bridge.requirement()}` for this Python")


def size(option, text):
    """The bytes that an option's text means; UsageError if it means none."""
    from stratalloc.sizes import parse_size

    if not text.isascii():  # digits of other scripts are digits to Python
        raise UsageError(f"{option} {text}: not a size (write 32MiB, 2GiB or "
                         "plain bytes)")
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from None


def depth(text):
    """argparse's type of --depth."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of levels; give 0 (the total alone) or more")
    return int(text)


def console(stream=None):
    """A rich console on `stream` (stdout): colours only on a terminal, none
    with NO_COLOR."""
    stream = stream or sys.stdout
    try:
        import rich.console
    except ImportError:
        raise CannotRunError(
            "stratalloc: this command prints tables with the package rich, "
            "which is not installed; run `pip install stratalloc`") from None
    from stratalloc._rendering import table as _table

    plain = not stream.isatty() or bool(os.environ.get("NO_COLOR"))
    width, height = _table.terminal(stream)

    class Console(rich.console.Console):
        def on_broken_pipe(self):
            raise  # for _pipes; rich would end the process with 1

    return Console(file=stream, no_color=plain, highlight=False, width=width,
                   height=height)


def tell(result, args, stream):
    """Prints a result's tree as --all and --depth say: with rich if that is
    there and `stream` a terminal, else as text."""
    page = result._page(  # pylint: disable=protected-access
        args.depth, args.all, more="--all or --depth N has them")
    if stream.isatty():
        with contextlib.suppress(CannotRunError):
            console(stream).print(page)
            return
    print(page.text(stream), file=stream)


def show(out, table):
    """Prints a table whole: a narrow terminal wraps its lines, a pipe takes
    them as they are, and no number is cut."""
    from stratalloc._rendering import table as _table

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, out, "width", out.width)
        out.width = _table.WHOLE  # rich would cut cells that do not wrap
        out.print(table, crop=False)
