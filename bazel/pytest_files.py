# SPDX-License-Identifier: Apache-2.0
"""Runs pytest over files, each in a fork of one process that imported torch.

    pytest_files.py [--fresh] [--long] [--libraries MODULE]
        [--import MODULE]... FILE... [-- ARGUMENTS OF PYTEST]

Importing torch takes two seconds and a fork none, and each file still has a
process, a device and an allocator of its own, as has each program that a test
runs by programs.py. `--libraries` names a module that imports torch on top of
other libraries than the package's, `--import` one that the files import
besides. `--fresh` starts a new interpreter per file, for files that look at an
import. Cases with the mark `long` run with `--long` alone, which runs no
others. Bazel's sharding spreads the files; test.xml has the cases of all of
them. A run of all files that finds no case fails, and so does a file that ends
before pytest has written its results.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import time
from xml.etree import ElementTree

from bazel import programs

_MARKS = ("long: run by ./dev test --long",)
# pytest loads each plugin that is installed. hypothesis's imports all of
# hypothesis at the end of a run, rewritten: 0.6 s for every file.
_WITHOUT = ("hypothesispytest", "anyio")
_NOTHING_COLLECTED = 5  # pytest's exit code


def main():
    options = _options(sys.argv[1:])
    files = _of_this_shard(options.files)
    if not options.fresh:
        _preload(options.libraries, options.imports)
    parts, failed, empty = [], [], []
    for number, file in enumerate(files):
        xml = os.path.join(_folder(), f"{os.getpid()}.{number}.xml")
        arguments = _pytest_arguments(file, number, xml, options)
        began = time.monotonic()
        code = (_spawn if options.fresh else _fork)(arguments)
        if code == 0 and not os.path.exists(xml):
            code = 1  # the file ended the process before pytest was done
        if code == _NOTHING_COLLECTED and _may_be_empty(options):
            code = 0
            empty.append(file)
        parts.append(_part(file, xml, code, time.monotonic() - began))
        if code != 0:
            failed.append(file)
    if empty == files and _is_empty(options):
        print("no file has such a case", flush=True)
        failed = files
    _write(parts)
    if len(files) > 1 and failed:
        print("failed:", *failed, sep="\n  ", flush=True)
    return 1 if failed else 0


def _options(arguments):
    more = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, more = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--libraries", metavar="MODULE")
    parser.add_argument("--import", dest="imports", action="append",
                        default=[], metavar="MODULE")
    parser.add_argument("files", nargs="+")
    # What `bazel test --test_arg=` adds is pytest's.
    options, others = parser.parse_known_args(arguments)
    options.more = more + others
    return options


def _may_be_empty(options):
    """A mark or a user's -k need not have a case in every file."""
    return options.long or any(
        word.startswith("-k") for word in options.more)


def _is_empty(options):
    """Whether no file of any shard has a case; asked by a shard without one."""
    run = _spawn if options.fresh else _fork
    return all(
        run([*_pytest_arguments(file, number, os.devnull, options),
              "--collect-only"]) == _NOTHING_COLLECTED
        for number, file in enumerate(options.files))


def _folder():
    return os.environ.get("TEST_TMPDIR", "/tmp")


def _of_this_shard(files):
    """Every shard takes each n-th file: neighbours are alike in length."""
    status = os.environ.get("TEST_SHARD_STATUS_FILE")
    if status:
        with open(status, "w", encoding="utf-8"):
            pass  # tells Bazel that shards are known here
    shards = int(os.environ.get("TEST_TOTAL_SHARDS", "1"))
    return files[int(os.environ.get("TEST_SHARD_INDEX", "0"))::shards]


def _pytest_arguments(file, number, xml, options):
    marks = [word for mark in _MARKS for word in ("-o", f"markers={mark}")]
    without = [word for name in _WITHOUT for word in ("-p", f"no:{name}")]
    return ["-q", "-p", "no:cacheprovider", *without, f"--rootdir={os.getcwd()}",
            f"--junitxml={xml}", f"--basetemp={_folder()}/pytest{number}",
            "-m", "long" if options.long else "not long", *marks,
            *options.more, file]


def _preload(libraries, imports):
    """Imports what every file imports; no thread and no device is left."""
    import gc
    import importlib

    if libraries:
        importlib.import_module(libraries)
    elif os.environ.get("STRATALLOC_SITE"):
        from stratalloc_cudasim import device

        device.preload()
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    for name in imports:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else every child copies these pages to look at them
    _end_before_torch()


def _end_before_torch():
    """A child ends once it has called the exit handlers registered after this.

    Those of torch's libraries, which were registered before, unregister each
    operator: they cost more than most programs.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)


def _fork(arguments):
    """pytest's exit code in a child; below 0: the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = programs.pair()
    child = os.fork()
    if child == 0:
        import pytest

        ours.close()
        programs.use(theirs)
        sys.argv = ["pytest", *arguments]
        # Handlers that the file registers for the exit run here.
        sys.exit(pytest.main(arguments))
    theirs.close()
    with ours:
        return programs.serve(ours, child)


def _spawn(arguments):
    return subprocess.run([sys.executable, "-m", "pytest", *arguments],
                          check=False).returncode


def _part(file, xml, code, seconds):
    """The file's suite; with a failure of its own where no case has one."""
    try:
        suite = ElementTree.parse(xml).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        suite = None
    if suite is None:
        suite = ElementTree.Element("testsuite", name=file)
    if code != 0 and not list(suite.iter("failure")) + list(suite.iter("error")):
        case = ElementTree.SubElement(suite, "testcase", classname=file,
                                      name="process", time=f"{seconds:.1f}")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        ElementTree.SubElement(case, "failure",
                               message=f"pytest ended with {how}")
    return suite


def _write(parts):
    file = os.environ.get("XML_OUTPUT_FILE")
    if file:
        root = ElementTree.Element("testsuites")
        root.extend(parts)
        ElementTree.ElementTree(root).write(file, encoding="utf-8",
                                            xml_declaration=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except programs.Begins as begins:
        program = begins.request
    programs.begin(program)
