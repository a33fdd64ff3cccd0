# SPDX-License-Identifier: Apache-2.0
"""A process that has imported everything and forks one child per run.

Importing torch and its friends takes seconds, a fork none, and every run still
has a device and an allocator of its own: the parent loads the simulated device
but never calls it, so each child is the first to.
"""

import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback

# No run may look for the network or a hub's cache.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare(card=None, numbers="on", devices=1, mode="eager", profile=None):
    """Loads the simulated device and torch; nothing uses CUDA here."""
    os.environ.update(_OFFLINE)
    from stratalloc import _autoload, simulate

    _autoload.leave_to_caller()
    # Each child says how large its device is; this is what nobody set.
    simulate.load("8GiB", devices=devices, mode=mode, card=card,
                  profile=profile, numbers=numbers)
    import torch

    # Sums in another order would differ in the last bit, and a parent whose
    # operators have threads must not fork.
    torch.set_num_threads(1)
    _import()
    return torch


def _import():
    """What each child would import: the first optimizer brings torch._dynamo."""
    import gc

    import torch._dynamo  # noqa: F401

    gc.collect()
    gc.freeze()  # else every child copies these pages to look at them


class Died(Exception):
    """A child ended without a result, or did not end."""


class Refused(Exception):
    """What a child raised, by type and text."""

    def __init__(self, kind, text, trace):
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.trace = trace


def run(function, *arguments, timeout=300):
    """function(*arguments) in a child; its value, or Refused or Died."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(function, arguments, writer, log)
        os.close(writer)
        try:
            answer = _answer(reader, timeout)
        finally:
            os.close(reader)
            _, status = os.waitpid(_ending(pid), 0)
        log.seek(0)
        text = log.read().decode("utf-8", "replace").strip()
    if answer is None:
        code = os.waitstatus_to_exitcode(status)
        how = (f"no answer within {timeout} s" if code == -signal.SIGKILL
               else f"signal {-code}" if code < 0 else f"exit code {code}")
        raise Died(f"the process ended with {how}: {text[-2000:]}")
    if "error" in answer:
        raise Refused(*answer["error"])
    return answer["value"]


def _ending(pid):
    """The same child, which is ending now: it has answered or never will."""
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], 5)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(ended)
    return pid


def _answer(reader, timeout):
    """The child's answer; None if the pipe closed or the time is up."""
    until = time.monotonic() + timeout
    parts = []
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            break
        parts.append(part)
    return pickle.loads(b"".join(parts)) if parts else None


def _replace_pool():
    """Lets torch make its pool of threads anew, which a fork asks for.

    The first use does that, in whichever thread it is: two at a time fail with
    "Invalid thread pool!" (torch 2.11, caffe2/utils/threadpool/pthreadpool-cpp.cc).
    """
    import torch

    torch.set_num_threads(torch.get_num_threads())


def _child(function, arguments, writer, log):
    """Never returns: exit handlers here are the parent's."""
    code = 1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        _replace_pool()
        try:
            answer = {"value": function(*arguments)}
        except BaseException as error:  # pylint: disable=broad-except
            answer = {"error": (type(error).__name__, str(error),
                                traceback.format_exc())}
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
        code = 0
    finally:
        os._exit(code)  # pylint: disable=protected-access
