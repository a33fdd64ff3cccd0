# SPDX-License-Identifier: Apache-2.0
"""`stratalloc run`: any script or module, unchanged, under the allocator.

The program runs in this process as `__main__`, with its own sys.argv and
sys.path[0]; its exit code and its exceptions are passed through. Nothing of
the program is edited.
"""

import importlib.machinery
import os
import runpy
import sys
import types

from stratalloc import cli
from stratalloc.settings import Config


def run(args):
    """Runs cli's `run`; returns the exit code or lets the program's raise."""
    conf = args.conf
    if conf is not None:
        os.environ["STRATALLOC_CONF"] = conf
    try:
        config = Config.from_env()
    except ValueError as error:
        raise cli.UsageError(error) from None
    if not args.module and not os.path.exists(args.target):
        raise cli.UsageError(f"no such script: {args.target}")
    _prepare(args, config)
    code = cli.EXIT_FAILED
    try:
        code = _execute(args)
    finally:
        _tell_simulated()
        if args.json:
            cli.write_json(args.json, _results(code))
    return code


def _prepare(args, config):
    """The simulated device if asked for, then the allocator."""
    from stratalloc import _enable

    # We enable by hand, in the one right order; the entry point would come
    # before the operator bridge. Children started later inherit the variable.
    os.environ["STRATALLOC"] = "0"
    if args.numbers is not None and args.simulate is None:
        raise cli.UsageError("--numbers is about a simulated GPU: give "
                             "--simulate SIZE as well")
    if args.simulate is not None:
        from stratalloc import simulate

        try:
            simulate.load(args.simulate, args.devices, args.mode, args.seed,
                          args.card, args.profile, args.numbers)
        except ValueError as error:
            raise cli.UsageError(error) from None
        print(f"stratalloc: {simulate.label()}", file=sys.stderr)
    elif args.card or args.profile:
        raise cli.UsageError(
            "stratalloc: --card and --profile describe a simulated GPU; give "
            "--simulate SIZE (or --simulate card) with them")
    if args.allocator == "native":
        return
    try:
        import torch  # noqa: F401  (enable needs it; a clear error if absent)
    except ImportError as error:
        raise cli.CannotRunError(
            f"stratalloc: torch cannot be imported ({error}); install torch "
            f"({', '.join(_minors())}) into this Python") from None
    enabled = _enable.enable(config)
    if enabled and args.simulate is None:
        # Child processes that import torch afresh come in by the entry point.
        os.environ["STRATALLOC"] = "1"


def _tell_simulated():
    """The last line of a simulated run: what did not happen is said too."""
    from stratalloc import simulate

    line = simulate.last_line()
    if line is not None:
        print(f"stratalloc: {line}", file=sys.stderr)


def _minors():
    from stratalloc import _bridge

    return _bridge.supported() or ["2.11"]


def _execute(args):
    """Runs the target as __main__; the code of its sys.exit, 0 without."""
    arguments = args.args
    try:
        if args.module:
            sys.argv = [args.target] + arguments
            sys.path.insert(0, os.getcwd())
            runpy.run_module(args.target, run_name="__main__", alter_sys=True)
        elif os.path.isdir(args.target) or args.target.endswith(".pyz"):
            sys.argv = [args.target] + arguments
            runpy.run_path(args.target, run_name="__main__")
        else:
            sys.argv = [args.target] + arguments
            _execute_file(args.target)
    except SystemExit as stop:
        return _exit_code(stop)
    return cli.EXIT_OK


def _execute_file(path):
    """Like `python path`: __main__ stays alive for exit handlers."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
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
        return cli.EXIT_OK
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return cli.EXIT_FAILED


def _results(code):
    from stratalloc import _core
    from stratalloc import _enable
    from stratalloc import simulate

    devices = []
    if _core.initialized():
        import torch

        devices = [_core.report(index)
                   for index in range(torch.cuda.device_count())]
    active = _enable.config()
    return {
        "exit_code": code,
        "enabled": _enable.is_enabled(),
        "simulated": simulate.label(),
        "config": active.to_dict() if active else None,
        "devices": devices,
        "counters": simulate.counters(),
        "virtual": simulate.virtual_time(),
    }
