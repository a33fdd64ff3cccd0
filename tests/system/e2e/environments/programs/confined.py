# SPDX-License-Identifier: Apache-2.0
"""Starts `stratalloc ARGUMENTS` in a process that has fewer rights.

    confined.py ordinary,read_only,io_uring=EPERM ARGUMENTS...

What was removed is tried first: a line of stderr that begins with
"confined:" says what the kernel answered.
"""

import ctypes
import errno
import os
import resource
import runpy
import socket
import sys
import tempfile

from tests.system.e2e.environments import confinement


def ordinary():
    confinement.as_ordinary_user()
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return f"uid {os.getuid()}, locks {limit}"


def read_only():
    how = confinement.read_only()
    tempfile.tempdir = None  # chosen when it could be written to
    answers = set()
    for folder in ("/", "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"),
                   os.getcwd()):
        try:
            os.close(os.open(os.path.join(folder, "written"),
                             os.O_CREAT | os.O_WRONLY, 0o600))
            answers.add("written")
        except OSError as error:
            answers.add(errno.errorcode[error.errno])
    return f"{how}, {' '.join(sorted(answers))}"


def io_uring(name):
    confinement.without_io_uring(getattr(errno, name))
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(120)
    code = libc.syscall(ctypes.c_long(425), ctypes.c_long(8), parameters)
    return f"io_uring_setup {code} {errno.errorcode[ctypes.get_errno()]}"


def packets():
    confinement.without_packet_sockets()
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).close()
        return "SOCK_SEQPACKET made"
    except OSError as error:
        return f"SOCK_SEQPACKET {errno.errorcode[error.errno]}"


def main():
    kinds = {"ordinary": ordinary, "read_only": read_only, "io_uring": io_uring,
             "packets": packets}
    for word in sys.argv[1].split(","):
        kind, _, value = word.partition("=")
        print("confined:", kinds[kind](*([value] if value else [])),
              file=sys.stderr)
    sys.argv = ["stratalloc", *sys.argv[2:]]
    runpy.run_module("stratalloc", run_name="__main__", alter_sys=True)


main()
