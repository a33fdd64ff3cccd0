# SPDX-License-Identifier: Apache-2.0
"""Programs that run in a fork of the test process, not in a new interpreter.

bazel/pytest_files.py has imported torch on top of the simulated libraries; a
new interpreter would import it again, for two seconds. The child gets its own
environment, arguments, `__main__` and output, and ends as an interpreter does:
exit handlers, modules and static objects included.
"""

import ctypes
import faulthandler
import importlib
import io
import logging
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import types
import warnings


def possible(environment):
    """True if a fork does what a new interpreter does in that environment."""
    device = sys.modules.get("stratalloc_cudasim.device")
    return (device is not None and device.preloaded()
            # Read while torch is imported, which is over here.
            and "STRATALLOC" not in environment)


def run(arguments, environment, timeout):
    """`python ARGUMENTS` (a file, -c TEXT or -m MODULE) as subprocess.run()
    does it: a CompletedProcess, or TimeoutExpired."""
    # A program that looks at its open files finds none of ours in /tmp.
    with (open(os.memfd_create("out"), "rb") as out,
          open(os.memfd_create("err"), "rb") as err):
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _child(arguments, environment, out.fileno(), err.fileno())
        ended = os.pidfd_open(child)
        in_time = select.select([ended], [], [], timeout)[0]
        os.close(ended)
        if not in_time:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    if not in_time:
        raise subprocess.TimeoutExpired(arguments, timeout, *texts)
    return subprocess.CompletedProcess(arguments, code, *texts)


def _child(arguments, environment, out, err):
    """Never returns."""
    code = 1
    try:
        _forget_pytest(out, err)
        os.environ.clear()
        os.environ.update(environment)
        code = _code(arguments)
    finally:
        # What the interpreter itself ends with.
        ctypes.pythonapi.Py_Exit(code)


def _forget_pytest(out, err):
    """Files, output, warnings, logs, imports and hooks are those of a new
    interpreter."""
    faulthandler.disable()
    os.dup2(out, 1)
    os.dup2(err, 2)
    _let_go_of_files()
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(file, "wb", -1, closefd=False),  # noqa: SIM115
                         "utf-8", "strict" if file == 1 else "backslashreplace",
                         line_buffering=file == 2) for file in (1, 2))
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.stdin = sys.__stdin__
    sys.excepthook = sys.__excepthook__
    sys.unraisablehook = sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    logging.getLogger().handlers.clear()
    sys.meta_path[:] = [finder for finder in sys.meta_path
                        if not type(finder).__module__.startswith("_pytest.")]
    importlib.reload(warnings)


def _let_go_of_files():
    """The numbers stay in use: objects of the test process will close them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if (int(name) > 2 and os.path.lexists(path)
                and os.readlink(path).endswith(" (deleted)")):
            os.dup2(nothing, int(name), inheritable=False)
    os.close(nothing)


def _code(arguments):
    """Runs the program; the exit code of an interpreter."""
    try:
        _execute(*arguments)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:  # pylint: disable=broad-except
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        return 1
    return 0


# Files whose frames stand between the interpreter and the program.
_OURS = (run.__code__.co_filename, runpy.run_path.__code__.co_filename)


def _execute(first, *others):
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if first == "-m":
        name, *others = others
        sys.argv = [name, *others]
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(name, None)  # the test may have imported it
        runpy._run_module_as_main(name)  # pylint: disable=protected-access
        return
    if first == "-c":
        text, *others = others
        sys.path.insert(0, "")
        code = compile(text, "<string>", "exec")
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        main.__file__ = first
        with open(first, "rb") as file:
            code = compile(file.read(), first, "exec")
    sys.argv = [first, *others]
    exec(code, main.__dict__)  # pylint: disable=exec-used
