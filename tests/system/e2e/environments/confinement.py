# SPDX-License-Identifier: Apache-2.0
"""Removes rights of the calling process, as containers and clusters do.

Each function is called before CUDA is used and lasts for the process and its
children. They need no other program. What the machine refuses is an OSError.

Thread-safety: call from the only thread of the process.
"""

import ctypes
import errno
import os
import resource
import struct

# Not 65534 of test_live_socket, which looks at that user's folder of sockets and
# may run beside.
ORDINARY = 65533

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 4, 8
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
# Numbers of x86-64.
_CAPGET, _CAPSET, _MOUNT_SETATTR = 125, 126, 442
_IO_URING = (425, 426, 427)  # setup, enter, register
# What Docker's default profile refuses besides: kcmp, keyctl, add_key,
# request_key, mount, umount2, pivot_root, setns, unshare, bpf,
# perf_event_open, userfaultfd, ptrace, process_vm_readv, process_vm_writev,
# mbind, set_mempolicy, get_mempolicy, move_pages, pidfd_getfd.
_DOCKER = (312, 250, 248, 249, 165, 166, 155, 308, 272, 321, 298, 323, 101,
           310, 311, 237, 238, 239, 279, 438)


def _check(result):
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _syscall(number, *arguments):
    return _check(_libc.syscall(
        ctypes.c_long(number),
        *(ctypes.c_long(one) if isinstance(one, int) else one
          for one in arguments)))


def _prctl(option, *arguments):
    _check(_libc.prctl(option, *(
        ctypes.c_ulong(one) if isinstance(one, int) else one
        for one in arguments), *[ctypes.c_ulong(0)] * (4 - len(arguments))))


def as_ordinary_user():
    """Makes root an ordinary user; the process may lock 64 KiB of memory.

    It and its children can still read the files of the test, which may lie in
    root's home, and write to no others' files. Of other users only the limit
    changes.
    """
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
    if os.getuid() != 0:
        return
    # In a container root may lack the first of them.
    permitted = _permitted()
    kept = next(one for one in (_CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE)
                if permitted >> one & 1)
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(ORDINARY, ORDINARY, ORDINARY)
    os.setresuid(ORDINARY, ORDINARY, ORDINARY)
    header = struct.pack("<Ii", 0x20080522, 0)
    _syscall(_CAPSET, header, struct.pack("<6I", *[1 << kept] * 3, 0, 0, 0))
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, kept)
    # A program that an ordinary user starts has its own /proc/self.
    _prctl(_PR_SET_DUMPABLE, 1)


def _permitted():
    data = ctypes.create_string_buffer(24)
    _syscall(_CAPGET, struct.pack("<Ii", 0x20080522, 0), data)
    return struct.unpack("<6I", data.raw)[1]


def read_only():
    """Nothing can be written anywhere, /tmp and /dev/shm included: "mounts".

    Where the machine allows no namespace of mounts, system calls that write
    say so without one: "calls".
    """
    try:
        _unshare_mounts()
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.ENOSPC):
            raise
        _refuse(_WRITES_FILES, errno.EROFS)
        return "calls"
    attributes = struct.pack("<4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    _syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes,
             len(attributes))
    return "mounts"


def _unshare_mounts():
    user, group = os.getuid(), os.getgid()
    try:
        _check(_libc.unshare(_CLONE_NEWNS))
    except PermissionError:
        _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"),
                           ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))


def without_io_uring(error):
    """The kernel refuses io_uring with this errno, and what Docker's default
    profile refuses with EPERM."""
    _refuse(dict.fromkeys(_IO_URING, ()), error)
    _refuse(dict.fromkeys(_DOCKER, ()), errno.EPERM)


def without_packet_sockets():
    """socket() refuses SOCK_SEQPACKET (5), and no type that others use: 4 is a
    bit of no stream's or datagram's."""
    _refuse({41: (1, 4)}, errno.EPERM)


# {system call: (argument, bits)}: refused if one of the bits is set. open,
# openat with O_WRONLY, O_RDWR, O_CREAT or O_TRUNC; creat, truncate, mkdir,
# rename, link, symlink, unlink, rmdir, mknod and their *at forms.
_OPENED_FOR_WRITING = 0o1 | 0o2 | 0o100 | 0o1000
_WRITES_FILES = {
    2: (1, _OPENED_FOR_WRITING), 257: (2, _OPENED_FOR_WRITING),
    **dict.fromkeys((85, 76, 82, 83, 84, 86, 87, 88, 133, 258, 259, 263, 264,
                     265, 266, 316, 437), ()),
}


def _refuse(calls, error):
    """A filter in the kernel's BPF; calls of other architectures pass."""
    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    program = [(load, 0, 0, 0)]
    for number, bits in calls.items():
        if bits:
            argument, mask = bits
            # Not this call: over the next three, with its number loaded anew.
            program += [(equal, 0, 4, number),
                        (load, 0, 0, 16 + 8 * argument),
                        (any_bit, 0, 1, mask),
                        (give, 0, 0, 0x00050000 | error),
                        (load, 0, 0, 0)]
        else:
            program += [(equal, 0, 1, number),
                        (give, 0, 0, 0x00050000 | error)]
    program.append((give, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("<HBBI", *one) for one in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filters)
