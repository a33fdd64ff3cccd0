# SPDX-License-Identifier: Apache-2.0
"""`stratalloc estimate`: what a script needs on a card, before it is rented.

The script runs on a simulated GPU that models the card and has many times its
memory, so that nothing is refused and nothing leaves: its peak is what it
needs. Numbers are off unless asked for: shapes and memory are real, values are
not, so a script that decides by values (until a loss falls) may not end.
"""

import sys

from stratalloc._terminal import command as _command
from stratalloc.sizes import format_size

_TIMES = 16  # the card's memory
# What tiering may move out between uses.
_MAY_LEAVE = ("parameter", "buffer", "gradient", "optimizer_state")


def main(args):
    """The exit code: the script's own; 0 whether it fits or not."""
    from stratalloc import simulate
    from stratalloc.cli import runner

    try:
        capacity, available = simulate.card_memory(args.card, args.profile)
    except ValueError as error:
        raise _command.UsageError(error) from None
    args.simulate = str(_TIMES * capacity)
    args.numbers = args.numbers or "off"
    args.devices = args.mode = args.seed = None
    args.report = False  # what it tells is here
    args.record, args.redact = None, False
    args.live, args.metrics = False, None
    args.allocator = "stratalloc"
    args.conf = "tiering:off"
    file, args.json = args.json, None
    try:
        code = runner.run(args)
    except BaseException as error:
        if error is _command.program_error:  # what it had needed by then
            _tell(args, capacity, available, _command.EXIT_FAILED, file)
        raise
    return _tell(args, capacity, available, code, file)


def _tell(args, capacity, available, code, file):
    """Prints or writes what was found, if anything was; the exit code."""
    from stratalloc._native import state as _state
    from stratalloc._reports import holders as _holders

    if not _state.is_enabled():
        return code  # the program took another allocator, as stderr says
    peaks = _holders.peaks()
    found = _found(args, capacity, available, code, peaks)
    if file:
        file.write(found)
    else:
        _print(args, found, peaks)
    return code


def _found(args, capacity, available, code, peaks):
    return {"card": args.card or args.profile, "capacity": capacity,
            "exit_code": code,
            "devices": [_of_device(available, peak) for peak in peaks]}


def _of_device(available, peak):
    import torch

    reserved = torch.cuda.max_memory_reserved(peak.device)
    return {"device": peak.device, "peak_allocated": peak.total,
            "peak_reserved": reserved, "available": available,
            "fits": reserved <= available,
            "may_leave": sum(row.bytes for row in peak.rows
                             if row.category in _MAY_LEAVE),
            "rows": peak["rows"]}


def _print(args, found, peaks):
    if not found["devices"]:
        print("the script did not use the GPU")
        return
    for device, peak in zip(found["devices"], peaks):
        reserved, available = device["peak_reserved"], device["available"]
        print(f"needs {format_size(device['peak_allocated'])}, "
              f"{format_size(reserved)} reserved; {found['card']} has "
              f"{format_size(found['capacity'])}, "
              f"{format_size(available)} of it for programs: "
              + (f"fits, {format_size(available - reserved)} are left"
                 if device["fits"] else
                 f"does not fit, {format_size(reserved - available)} are "
                 f"missing; {format_size(device['may_leave'])} of it may leave "
                 "the GPU between uses, with tiering"))
        _command.tell(peak, args, sys.stdout)
    if found["exit_code"]:
        print(f"the script ended with code {found['exit_code']}: it may need "
              "more than it got to", file=sys.stderr)

