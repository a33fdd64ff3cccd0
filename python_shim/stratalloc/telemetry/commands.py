# SPDX-License-Identifier: Apache-2.0
"""Commands that read recordings and snapshots: `stratalloc summary FILE` etc.

Each takes --json FILE|-. Exit codes are the command line's (cli.py): 0 fine; 1
the file is damaged or cannot be written, or the answer is no (`validate` found
something, `fit` found that it does not fit); 2 usage; 3 a package is missing; 4
the answer is not known (`fit` of a file that lacks events).
"""

import enum
import os
import sys
import typing

import typer

from stratalloc._native import older_spellings
from stratalloc._rendering.table import printable
from stratalloc._terminal import command as _command
from stratalloc._terminal.command import (EXIT_CANNOT, EXIT_FAILED, EXIT_OK,
                                          EXIT_UNKNOWN, EXIT_USAGE,
                                          CannotRunError, UsageError)
from stratalloc.telemetry import formats, progress
from stratalloc.telemetry.errors import (MissingPackageError, SnapshotError,
                                         TelemetryError)
from stratalloc.telemetry.places import place, result_file

app = typer.Typer(add_completion=False, no_args_is_help=True,
                  pretty_exceptions_enable=False, rich_markup_mode=None,
                  context_settings={"help_option_names": ["-h", "--help"]})

# Whatever typer refuses; the class is click's, or typer's own copy of it.
_USAGE = typer.BadParameter.__mro__[1]

Format = enum.Enum("Format", {name: name for name in formats.FORMATS})
_ROWS = ("owner", "category", "site")
At = enum.Enum("At", {name: name for name in ("peak", "start", "end")})

_File = typing.Annotated[str, typer.Argument(
    help="a recording of `stratalloc run --record`, or a snapshot of torch")]
_Json = typing.Annotated[str, typer.Option(
    "--json", metavar="FILE", help="the answer as JSON to FILE (- = stdout)")]
_Device = typing.Annotated[int, typer.Option(
    help="index of the device; else the one that held most")]


def _by(given: str) -> str:
    by = older_spellings.by(given)
    if by not in _ROWS:
        raise typer.BadParameter(
            f"{given!r} is not one of {', '.join(map(repr, _ROWS))}.")
    return by


_By = typing.Annotated[str, typer.Option(
    help="what rows are", metavar="|".join(_ROWS), callback=_by)]
_All = typing.Annotated[bool, typer.Option("--all", help="all lines")]
_Depth = typing.Annotated[int, typer.Option(
    min=0, metavar="N", help="N levels of the tree, with all of their lines")]
_Out = typing.Annotated[str, typer.Option("-o", "--output", metavar="OUT",
                                          help="where it is written")]


class _Answered(Exception):
    """Everything is said: the answer is no, or not known. `code`: to exit with."""

    def __init__(self, code=EXIT_FAILED):
        super().__init__(code)
        self.code = code


def main(argv):
    """Parses and runs; returns the exit code."""
    command, streams = argv[0], (sys.stdout, sys.stderr)
    try:
        with progress.shown():
            app(argv, prog_name="stratalloc", standalone_mode=False)
        return EXIT_OK
    except typer.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:
        # typer's end where a reader has left; ours is in _pipes.
        sys.stdout, sys.stderr = streams
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        raise
    except _USAGE as error:
        return _say(command, error.format_message().replace(
            "Value error, ", ""), EXIT_USAGE)
    except typer.Abort:
        return EXIT_FAILED
    except _Answered as answered:
        return answered.code
    except UsageError as error:
        return _say(command, error, EXIT_USAGE)
    except (MissingPackageError, CannotRunError) as error:
        print(error, file=sys.stderr)
        return EXIT_CANNOT
    except ImportError as error:
        return _say(command, "this needs packages that are not installed "
                    f"({error}); run `pip install stratalloc`", EXIT_CANNOT)
    except TelemetryError as error:
        return _say(command, error, EXIT_FAILED)
    except MemoryError:
        return _say(command, "there is not enough memory for what it reads; "
                    "run it on a machine with more, or record fewer events",
                    EXIT_FAILED)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename in argv:
            return _say(command, f"there is no file {error.filename}",
                        EXIT_USAGE)
        return _say(command, f"{error.filename or 'a file'}: {error.strerror}",
                    EXIT_FAILED)


def _say(command, what, code):
    print(f"stratalloc {command}: {what}", file=sys.stderr)
    return code


def _load(path):
    from stratalloc.telemetry import files

    return files.load(path)


def _load_to_check(path):
    """As _load_to_answer; of other tools' files nothing says which format they
    are."""
    try:
        return _load_to_answer(path)
    except SnapshotError as error:
        raise TelemetryError(
            f"{error}; if it was converted, say to what: --format "
            f"{', '.join(formats.FORMATS)}") from None


def _load_to_answer(path):
    """As _load; what the answer lacks is said beside it, on stderr."""
    from stratalloc.telemetry.exports.notes import missing

    run = _load(path)
    if missing(run):
        print(f"stratalloc: {path}: {missing(run)}", file=sys.stderr)
    return run


def _tell(result, json, runs, depth=None, all=False):  # noqa: A002
    """An answer for people on stdout, and as JSON where that is wanted, which
    says of each of the recordings what it lacks and cost."""
    from stratalloc.telemetry.exports.notes import notes

    said = [notes(run) for run in runs]
    if json and not json.write({
            **result.to_dict(),
            "recording": said[0] if len(said) == 1 else said}):
        raise _Answered
    if json and json.on_stdout:
        return
    page = result._page(  # pylint: disable=protected-access
        depth, all, more="--all or --depth N has them")
    if sys.stdout.isatty():
        try:
            return _command.console(sys.stdout).print(page)
        except CannotRunError:
            pass
    print(page.text(sys.stdout))


def _in(run, device):
    """UsageError where the run has no such device."""
    there = [one.index for one in run.devices]
    if device is not None and device not in there:
        raise UsageError(f"--device {device}: the file has "
                         f"{', '.join(map(str, there)) or 'no device'}")
    return device


@app.command()
def convert(file: _File, to: typing.Annotated[Format, typer.Option(
        help="what other tools read")], output: _Out, json: _Json = None):
    """Write a recording in a format of another tool."""
    from stratalloc.telemetry.exports.notes import notes

    output = place(output, file)
    result = result_file(json, file, beside=output)
    run = _load_to_answer(file)
    try:
        formats.write(to.value, run, output)
    except OSError as error:
        raise TelemetryError(
            f"{output} cannot be written: {error.strerror}; choose a place "
            "that can be written and has room") from None
    size = os.path.getsize(output) if os.path.isfile(output) else None
    if result and not result.write({
            "format": to.value, "path": output, "bytes": size,
            "events": len(run.events), "recording": notes(run)}):
        raise _Answered
    if not (result and result.on_stdout):
        print(f"{output}: {to.value} of {len(run.events)} events"
              + ("" if size is None else f", {size} bytes"))


@app.command()
def validate(file: _File, format: typing.Annotated[  # noqa: A002
        str, typer.Option(help="of a converted file: speedscope, snapshot, "
                          "chrome and others")] = None, json: _Json = None):
    """Say what is wrong with a recording, a snapshot or a converted file."""
    from stratalloc.telemetry import identities

    from stratalloc.telemetry.exports.notes import notes

    result = result_file(json, file)
    if format is not None and format not in formats.FORMATS:
        raise UsageError(f"--format {format}: one of "
                         f"{', '.join(formats.FORMATS)}")
    said = {}
    if format is None:
        run = _load_to_check(file)
        found = [str(one) for one in identities.check(run)]
        said["recording"] = notes(run)
    else:
        found = formats.check(format, file)
    if result and not result.write({"path": file, "findings": found, **said}):
        raise _Answered
    if not (result and result.on_stdout):
        for one in found:
            print(f"{file}: {one}")
        if not found:
            print(f"{file}: fine")
    if found:
        raise _Answered


@app.command()
def summary(file: _File, json: _Json = None):
    """What a run was, on a page."""
    from stratalloc.telemetry.analysis import summary as analysis

    result = result_file(json, file)
    run = _load(file)
    _tell(analysis.summary(run), result, [run])


@app.command()
def tree(file: _File, at: At = At.peak, by: _By = "owner",
         device: _Device = None, depth: _Depth = None, all: _All = False,  # noqa: A002
         json: _Json = None):
    """Memory by owner in a recording."""
    from stratalloc.telemetry.analysis import owners

    result = result_file(json, file)
    run = _load_to_answer(file)
    _tell(owners.tree(run, _in(run, device), at.value, by), result, [run],
          depth, all)


@app.command()
def peak(file: _File, by: _By = "owner", device: _Device = None,
         depth: _Depth = None, all: _All = False, json: _Json = None):  # noqa: A002
    """Memory by owner when most of it was allocated."""
    from stratalloc.telemetry.analysis import owners

    result = result_file(json, file)
    run = _load_to_answer(file)
    _tell(owners.peak(run, _in(run, device), by), result, [run], depth,
          all)


@app.command()
def diff(a: _File, b: _File, at: At = At.peak, by: _By = "owner",
         device: _Device = None, depth: _Depth = None, all: _All = False,  # noqa: A002
         json: _Json = None):
    """Memory that the second file has more than the first, by owner."""
    from stratalloc.telemetry.analysis import owners

    result = result_file(json, a, b)
    first, second = _load_to_answer(a), _load_to_answer(b)
    _in(first, device)
    _tell(owners.diff(first, second, _in(second, device), at.value, by),
          result, [first, second], depth, all)


@app.command()
def leaks(file: _File, by: _By = "owner", device: _Device = None,
          depth: _Depth = None, all: _All = False, json: _Json = None):  # noqa: A002
    """Owners that hold more after every step: marks, or ranges of
    record_function."""
    from stratalloc.telemetry.analysis import owners

    result = result_file(json, file)
    run = _load_to_answer(file)
    _tell(owners.leaks(run, _in(run, device), by), result, [run], depth,
          all)


def _recording_in(path):
    """Of the folder of an out of memory its recording, else the path itself."""
    inside = os.path.join(path, "run.strata")
    return inside if os.path.isdir(path) and os.path.exists(inside) else path


@app.command()
def report(files: typing.Annotated[list[str], typer.Argument(
        metavar="FILE...", help="recordings or snapshots, or folders of an out "
        "of memory; a rank each, if they are several")],
        output: _Out = "report.html", json: _Json = None):
    """Write a page for a browser of all that a recording tells."""
    from stratalloc.telemetry.analysis.verdict import Verdict
    from stratalloc.telemetry.exports.notes import notes
    from stratalloc.telemetry.report import page
    from stratalloc.telemetry.report.fitting import fitting

    files = [_recording_in(file) for file in files]
    output = place(output, *files)
    result = result_file(json, *files, beside=output)
    names = [os.path.basename(file) for file in files]
    runs = [_load_to_answer(file) for file in files]
    told = fitting(list(zip(
        names if len(set(names)) == len(names) else files, runs)))
    try:
        page.write(told, output)
    except OSError as error:
        raise TelemetryError(
            f"{output} cannot be written: {error.strerror}; choose a place "
            "that can be written and has room") from None
    said = [notes(run) for run in runs]
    if result and not result.write({
            **told, "path": output,
            "recording": said[0] if len(said) == 1 else said}):
        raise _Answered
    if not (result and result.on_stdout):
        for file, one in zip(files, told["runs"]):
            print(f"{printable(file)}: {Verdict.of(one['verdict']).line}")
        print(f"{printable(output)}: a page to open in a browser")


@app.command()
def recover(file: typing.Annotated[str, typer.Argument(
        help="FILE.running of a program that was killed")], output: _Out,
            redact: typing.Annotated[bool, typer.Option(
                "--redact", help="without names")] = False,
            json: _Json = None):
    """Make a recording of what a killed program left."""
    from stratalloc._native import core as _core
    from stratalloc.telemetry.exports.notes import notes
    from stratalloc.telemetry.regular import opened

    output = place(output, file)
    result = result_file(json, file, beside=output)
    opened(file).close()  # what is not there is said as by every command
    try:
        _core.recover_recording(file, output, redact)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise TelemetryError(str(error)) from None
    run = _load(output)
    if result and not result.write({"path": output, "events": len(run.events),
                                    "recording": notes(run)}):
        raise _Answered
    if not (result and result.on_stdout):
        print(f"{output}: {len(run.events)} events"
              + (f"; {run.dropped} were lost" if run.dropped else ""))


@app.command()
def metrics(sources: typing.Annotated[list[str], typer.Argument(
        metavar="SOURCE...", help="[RANK=]FILE of write_metrics(), or [RANK=]URL "
        "of serve_metrics()")],
            output: typing.Annotated[str, typer.Option(
                "-o", "--output", metavar="OUT", help="where it is written, for "
                "node_exporter: whole, and for everybody to read (stdout)")] = None,
            json: _Json = None):
    """Metrics of several processes as one, by rank."""
    from stratalloc.telemetry import ranks
    from stratalloc.telemetry.exports.target import target

    files = [source.rpartition("=")[2] for source in sources] + sources
    if output is not None:
        for file in files:
            place(output, file)
    result = result_file(json, *files, beside=output)
    found = ranks.merged(sources)
    text = ranks.text(found)
    if output is not None:
        with target(output, mode=0o644) as file:
            file.write(text)
    if result and not result.write({"metrics": [
            {"name": sample.name, "type": one.type, "labels": sample.labels,
             "value": sample.value}
            for one in found for sample in one.samples]}):
        raise _Answered
    if output is None and not (result and result.on_stdout):
        sys.stdout.write(text.decode())


@app.command()
def fit(file: _File, capacity: typing.Annotated[str, typer.Option(
        metavar="SIZE", help="of the card: 24GiB")],
        policy: typing.Annotated[str, typer.Option(
            help="none: nothing is ever evicted; tiering: the allocator's "
            "own; oracle: what could be moved least")] = "none",
        bandwidth: typing.Annotated[float, typer.Option(
            metavar="GB/s", help="of copies; as the recording's own moves, or "
            "24")] = None,
        device: _Device = None, json: _Json = None):
    """Would the run fit a card of another size, and how slow would it be?

    Exit codes: 0 it fits, 1 it does not, 4 not known.
    """
    from stratalloc.telemetry.analysis import fit as analysis

    result = result_file(json, file)
    wanted = _command.size("--capacity", capacity)
    if policy not in analysis.POLICIES:
        raise UsageError(f"--policy {policy}: one of "
                         f"{', '.join(analysis.POLICIES)}")
    # In bytes: one a second at least, and of a number that is finite.
    if bandwidth is not None and not 1 <= bandwidth * 1e9 < float("inf"):
        raise UsageError(f"--bandwidth {bandwidth}: give GB/s above 0, of which "
                         "a copy is done in a time that can be told")
    run = _load_to_answer(file)
    found = analysis.fit(run, wanted, _in(run, device), policy,
                         bandwidth and bandwidth * 1e9)
    _tell(found, result, [run])
    if not found.fits:
        raise _Answered(EXIT_UNKNOWN if found.fits is None else EXIT_FAILED)
