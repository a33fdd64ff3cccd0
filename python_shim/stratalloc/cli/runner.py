# SPDX-License-Identifier: Apache-2.0
"""`stratalloc run`: any script or module, unchanged, under the allocator.

The program runs in this process as `__main__`, with its own sys.argv and
sys.path[0]; its exit code and its exceptions are passed through. Nothing of
the program is edited.
"""

import importlib.machinery
import importlib.util
import os
import runpy
import sys
import threading
import types

from stratalloc._live import last_line as _last_line
from stratalloc._terminal import command as _command
from stratalloc._terminal import pipes as _pipes
from stratalloc.settings import Config

# What describes a simulated device, besides its size.
_OF_SIMULATED = ("devices", "mode", "seed", "numbers", "card", "profile")


def run(args):
    """Runs cli's `run`; returns the exit code or lets the program's raise."""
    _check(args)
    if args.conf is not None:
        os.environ["STRATALLOC_CONF"] = args.conf
    try:
        if args.live:
            _make_live()
        config = Config.from_env()
        if args.allocator != "native":
            config.resolved()  # nothing is started if that cannot be
    except ValueError as error:
        raise _command.UsageError(error) from None
    try:
        _prepare(args, config)
        if args.metrics is not None:
            _serve_metrics(*args.metrics)
    except BaseException:
        _abandon(args)
        raise
    try:
        code = _execute(args)
    except BaseException as error:
        _command.program_error = error
        _report_from_the_program_on(error, lambda: (
            _end(args, _command.EXIT_FAILED), _pipes.written()))
        raise
    return _end(args, code)


def _make_live():
    """The setting `live`, of this process and those that it starts. ValueError
    for a text that has mistakes."""
    given = os.environ.get("STRATALLOC_CONF", "")
    Config.parse(given)
    kept = [item for item in given.split(",") if item.strip()
            and item.partition(":")[0].strip() != "live"]
    os.environ["STRATALLOC_CONF"] = ",".join([*kept, "live:on"])


def _show_live():
    """What is shown beside the program; None: a line says how to look."""
    from stratalloc._live import server
    from stratalloc._live.beside import Beside

    path = server.serve()
    strip = Beside.on(sys.stderr)
    if strip is None and path is not None:
        _pipes.note(f"stratalloc: `stratalloc top --pid {os.getpid()}` shows "
                    "this process while it runs")
    return strip


def _abandon(args):
    """The program is not started: what was begun for it leaves nothing."""
    if args.live and args.live is not True:
        args.live.close()
    if args.record is not None and not isinstance(args.record, str):
        args.record.discard()


def _end(args, code):
    """The result and the last line, once all of the program is over: after the
    threads that Python waits for, as at its own end. Returns the exit code."""
    threading._shutdown()  # pylint: disable=protected-access
    if args.live:
        args.live.close()
    ours = _is_in_place()
    if args.allocator != "native" and not ours:
        code = code or _command.EXIT_CANNOT
    written = _write_results(args, code)
    if args.record is not None:
        if ours:
            written = args.record.end() and written
        else:
            args.record.discard()
    if ours and args.report:
        _tell_holders(args)
    if ours:
        _last_line.tell(args.record and args.record.written)
    elif args.allocator != "native":
        _tell_replaced(args)
    _tell_simulated()
    return code if written else code or _command.EXIT_FAILED


def _is_in_place():
    from stratalloc._native import state as _state

    return _state.is_enabled()


def _tell_replaced(args):
    """What the run was to show of the program's memory did not happen."""
    _pipes.note(
        f"stratalloc {args.command}: the program put another CUDA allocator in "
        "place, so nothing is known of its memory; remove its call of "
        f"torch.cuda.memory.change_current_allocator{_or_native(args)}")


def _check(args):
    """UsageError for what is a mistake however the program goes."""
    if args.simulate is None:
        given = ["--" + name for name in _OF_SIMULATED
                 if getattr(args, name) is not None]
        if given:
            raise _command.UsageError(
                f"{', '.join(given)}: about simulated GPUs; give --simulate "
                "SIZE as well" + ("" if args.devices is None else
                ", or choose real ones with CUDA_VISIBLE_DEVICES"))
    elif args.simulate != "card":
        _command.size("--simulate", args.simulate)
    if args.redact and args.record is None:
        raise _command.UsageError("--redact: of a recording; give --record "
                                  "FILE as well")
    if args.record is not None and args.allocator == "native":
        raise _command.UsageError(
            "--record: torch's allocator is recorded by torch.cuda.memory."
            "_record_memory_history, whose files `stratalloc convert` reads; "
            "leave --allocator out")
    if args.live and args.allocator == "native":
        raise _command.UsageError("--live: torch's allocator does not know "
                                  "who holds memory; leave --allocator out")
    if args.report and args.allocator == "native":
        raise _command.UsageError("--report: torch's allocator does not know "
                                  "who holds memory; leave --allocator out")
    if args.metrics is not None and args.allocator == "native":
        raise _command.UsageError(
            "--metrics: torch's allocator has none of ours; leave --allocator "
            "out")
    if args.module:
        _check_module(args.target)
    elif not os.path.exists(args.target):
        raise _command.UsageError(f"no such script: {args.target}")
    elif os.path.isdir(args.target) and not os.path.exists(
            os.path.join(args.target, "__main__.py")):
        raise _command.UsageError(
            f"{args.target} is a directory without a __main__.py; name the "
            f"script in it: {os.path.join(args.target, 'SCRIPT.py')}")


def _check_module(name):
    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    package = name.partition(".")[0]
    try:
        found = importlib.util.find_spec(package)
    except ValueError:
        found = None  # no name at all, or __main__
    if found is None:
        raise _command.UsageError(f"no such module: {name}")


def _prepare(args, config):
    """The simulated device if asked for, then the allocator."""
    from stratalloc import _autoload
    from stratalloc import _enable
    from stratalloc._native import state as _state
    from stratalloc._recording import record as _record

    live, args.live = args.live, None  # from here on what is to be closed
    if args.allocator == "native":
        # Of the program and of children that it starts.
        os.environ["STRATALLOC"] = "0"
    elif _state.forbidden():
        raise _command.CannotRunError(
            f"stratalloc {args.command}: STRATALLOC=0 in the environment keeps "
            f"PyTorch's allocator; unset it{_or_native(args)}")
    # We enable by hand, in the one right order; the entry point would come
    # before the operator bridge.
    _autoload.leave_to_caller()
    if args.simulate is not None:
        from stratalloc import simulate

        try:
            simulate.load(args.simulate, _or(args.devices, 1),
                          _or(args.mode, "eager"), _or(args.seed, 0),
                          args.card, args.profile, args.numbers)
        except ValueError as error:
            raise _command.UsageError(error) from None
        simulate.for_children()
        _pipes.note(f"stratalloc: {simulate.label()}")
    if args.allocator == "native":
        return
    _require_possible(args)
    # Where the rings lie is said once, and a level begins them, too.
    if args.record is not None:
        args.record = _record.Recording(args.record, args.redact)
    else:
        config = _record.inherited(config)
    try:
        _enable.enable(config)
    except RuntimeError as error:
        raise _command.CannotRunError(error) from None
    _last_line.begin()
    # Child processes that import torch afresh come in by the entry point.
    os.environ["STRATALLOC"] = "1"
    if live:
        args.live = _show_live()


def _or_native(args):
    return "" if args.command != "run" else (
        ", or give --allocator native, which runs the program without "
        "stratalloc")


def _require_possible(args):
    """CannotRunError where the allocator cannot be put in place: known before
    the program starts and a recording begins."""
    from stratalloc import _enable
    from stratalloc._native import bridge as _bridge
    from stratalloc._native import gpus as _gpus
    from stratalloc._native import state as _state
    from stratalloc._native.errors import UnsupportedTorchError

    torch = _command.import_torch()
    try:
        _bridge.load(torch.__version__)
    except UnsupportedTorchError as error:
        raise _command.CannotRunError(
            f"{error}{_or_native(args)}") from None
    late = None if _state.is_enabled() else _enable.why_late(torch)
    if late is not None:
        advice = late[1] if not torch.cuda.is_initialized() else (
            "let nothing that Python imports at its start use CUDA")
        raise _command.CannotRunError(
            f"stratalloc {args.command}: {late[0]}; {advice}"
            f"{_or_native(args)}")
    reason = _gpus.why_none(torch)
    if reason is not None:
        raise _command.CannotRunError(
            f"stratalloc run: there is no GPU for {args.target}: {reason}; "
            "`stratalloc run --simulate 8GiB` has a simulated one")


def _serve_metrics(address, port):
    """Until the process ends; a line on stderr says where."""
    from stratalloc._metrics import server as _metrics_server
    from stratalloc.telemetry.errors import MissingPackageError

    local = os.environ.get("LOCAL_RANK", "")
    if port and local.isascii() and local.isdecimal():
        port += int(local)
    try:
        server = _metrics_server.serve_metrics(port, address)
    except MissingPackageError as error:
        raise _command.CannotRunError(error) from None
    except (ValueError, RuntimeError) as error:
        raise _command.UsageError(f"--metrics: {error}") from None
    _pipes.note(f"stratalloc: metrics at {server.url}")


def _or(value, default):
    return default if value is None else value


def _report_from_the_program_on(error, afterwards):
    """What the interpreter prints of `error` begins at the program, not with
    us, and nothing of ours stands before it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    hook = sys.excepthook  # the program's own, if it set one

    def show(kind, value, found):
        if value is error:
            value.__traceback__ = found = trace
        try:
            hook(kind, value, found)
        finally:
            afterwards()

    sys.excepthook = show


# Files whose frames stand between the interpreter and the program.
_OURS = (run.__code__.co_filename, runpy.run_path.__code__.co_filename)


def _tell_simulated():
    """The last line of a simulated run: what did not happen is said too."""
    from stratalloc import simulate

    line = simulate.last_line()
    if line is not None:
        _pipes.note(f"stratalloc: {line}")


def _tell_holders(args):
    """Who held memory at the peak of each device that held something."""
    from stratalloc._reports import holders as _holders

    try:
        found = [peak for peak in _holders.peaks() if peak.total]
        for peak in found:
            _command.tell(peak, args, sys.stderr)
    except Exception as error:  # pylint: disable=broad-except
        # A device that is lost cannot be asked; the exit code stays known.
        _pipes.note(f"stratalloc: --report: {error}")
    else:
        if not found:
            _pipes.note("stratalloc: --report: the program held no memory of "
                        "a GPU")


def _execute(args):
    """Runs the target as __main__; the code of its sys.exit, 0 without."""
    arguments = args.args
    try:
        if args.module:
            sys.argv = [args.target] + arguments
            runpy.run_module(args.target, run_name="__main__", alter_sys=True)
        elif os.path.isdir(args.target) or args.target.endswith(".pyz"):
            sys.argv = [args.target] + arguments
            runpy.run_path(args.target, run_name="__main__")
        else:
            sys.argv = [args.target] + arguments
            _execute_file(os.path.abspath(args.target))
    except SystemExit as stop:
        return _exit_code(stop)
    return _command.EXIT_OK


def _execute_file(path):
    """Like `python path`: __main__ stays alive for exit handlers."""
    sys.path.insert(0, os.path.dirname(path))
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # pylint: disable=exec-used


def _exit_code(stop):
    """What the interpreter would exit with for this SystemExit."""
    if stop.code is None:
        return _command.EXIT_OK
    if isinstance(stop.code, int):
        return stop.code
    _pipes.note(stop.code)
    return _command.EXIT_FAILED


def _write_results(args, code):
    """False if --json was given and could not be served."""
    if not args.json:
        return True
    try:
        values = _results(code)
    except Exception as error:  # pylint: disable=broad-except
        # A device that is lost cannot be asked; the exit code stays known.
        values = {"exit_code": code, "error": str(error)}
    try:
        return args.json.write(values)
    except _pipes.UnreadError:
        return True  # the program did nothing wrong


def _results(code):
    from stratalloc import simulate
    from stratalloc._native import core as _core
    from stratalloc._native import state as _state

    devices = []
    if _core.initialized():
        import torch

        devices = [_core.report(index)
                   for index in range(torch.cuda.device_count())]
    active = _state.active
    return {
        "exit_code": code,
        "enabled": _state.is_enabled(),
        "simulated": simulate.label(),
        "config": active.to_dict() if active else None,
        "devices": devices,
        "counters": simulate.counters(),
        "virtual": simulate.virtual_time(),
    }
