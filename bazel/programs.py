# SPDX-License-Identifier: Apache-2.0
"""Programs of a test, each in a fork of the process that has imported torch.

    done = programs.run("-c", text, env=..., cwd=...)

It is subprocess.run([sys.executable, ...]) without the seconds of `import
torch`: pytest_files.py, which has run nothing else, forks for the program, and
the interpreter ends as any other does. An interpreter is started where there is
no pytest_files.py, under its `--fresh`, and for STRATALLOC in the environment,
which the import of torch reads.

`fresh` starts one for a program that looks at imports, at its outermost frame or
at the exit handlers of torch's libraries, which a fork does not call.
"""

import builtins
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types

_SOCKET = "STRATALLOC_TEST_PROGRAMS"  # the number of a file descriptor
# The driver of a fork may be the simulated one, which shows its device to
# programs that may see none: torch then counts visible devices by itself.
_NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_LARGEST = 1 << 17  # a request


class Begins(BaseException):
    """Leaves all frames of the forked process, which then calls begin()."""

    def __init__(self, request):
        super().__init__()
        self.request = request


def run(*arguments, env=None, cwd=None, merged=False, fresh=False,
        timeout=300):
    """The ended `python ARGUMENTS`, as subprocess.run(text=True) gives it.

    The arguments begin with "-c", "-m" or a path. `env` is the whole
    environment. `merged`: standard output has standard error as well, line by
    line as on a terminal. Raises subprocess.TimeoutExpired after `timeout`
    seconds.
    """
    values = {key: value for key, value in (env or os.environ).items()
              if key != _SOCKET}
    arguments = [os.fspath(one) for one in arguments]
    command = [sys.executable, *(["-u"] if merged else []), *arguments]
    if fresh or _SOCKET not in os.environ or "STRATALLOC" in values:
        return subprocess.run(
            command, env=values, cwd=cwd, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True, timeout=timeout, check=False,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE)
    if values.get("CUDA_VISIBLE_DEVICES") == "":
        values |= _NO_DEVICE
    with contextlib.ExitStack() as stack:
        # Not in /tmp: a program may look for what it has open there.
        out, errors = (stack.enter_context(open(os.memfd_create(name), "w+"))
                       for name in ("out", "errors"))
        code = _ask({"arguments": arguments, "env": values, "timeout": timeout,
                     "cwd": os.path.abspath(cwd or os.getcwd()), "lines": merged},
                    [out.fileno(), (out if merged else errors).fileno()])
        texts = [_text(file) for file in (out, errors)]
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    return subprocess.CompletedProcess(command, code, *texts)


def _text(file):
    file.seek(0)
    return file.read()


def _ask(request, files):
    """The program's exit code; None: it did not end in time."""
    message = json.dumps(request).encode()
    assert len(message) < _LARGEST, "the program is too long: write a file"
    with socket.socket(fileno=os.dup(int(os.environ[_SOCKET]))) as server:
        socket.send_fds(server, [message], files)
        answer = server.recv(1 << 10)
    assert answer, "pytest_files.py has ended"
    return json.loads(answer)


def pair():
    """(pytest_files.py's end, the end of its child)."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def use(end):
    """In the child: run() asks there."""
    os.environ[_SOCKET] = str(end.fileno())


def serve(end, child):
    """Forks for what the child asks until it ends; its exit code.

    In each fork it raises Begins.
    """
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(end, select.POLLIN)
    while True:
        ready = [file for file, _ in poll.poll()]
        if ended in ready:
            os.close(ended)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        message, files, _, _ = socket.recv_fds(end, _LARGEST, 2)
        if not message:
            poll.unregister(end)
            continue
        end.send(json.dumps(_program(json.loads(message), files)).encode())


def _program(request, files):
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        for file, number in zip(files, (1, 2), strict=True):
            os.dup2(file, number)
            os.close(file)
        raise Begins(request)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(pid)
    in_time = select.select([ended], [], [], request["timeout"])[0]
    os.close(ended)
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if in_time else None


def begin(request):
    """Is the program, from the outermost frame; ends like the interpreter."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["lines"]:
        sys.stdout.reconfigure(line_buffering=True)
    kind, *arguments = request["arguments"]
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    try:
        if kind == "-m":
            sys.argv, sys.path[0] = arguments, request["cwd"]
            runpy._run_module_as_main(arguments[0])  # as the interpreter does
            return
        if kind == "-c":
            text, *more = arguments
            sys.argv, sys.path[0] = [kind, *more], ""
            name = "<string>"
        else:
            sys.argv = [kind, *arguments]
            sys.path[0] = os.path.dirname(os.path.abspath(kind))
            main.__file__ = name = kind
            with open(kind, encoding="utf-8") as file:
                text = file.read()
        exec(compile(text, name, "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # pylint: disable=broad-except
        error.__traceback__ = error.__traceback__.tb_next  # begins below us
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
