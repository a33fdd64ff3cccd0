# SPDX-License-Identifier: Apache-2.0
"""The command `stratalloc` (= `python -m stratalloc`).

Exit codes: 0 fine; 1 the job failed (a demo whose numbers differ, a benchmark
that could not run, an exception in a script); 2 usage (unknown option, bad
--conf or size); 3 this machine or installation cannot run it (missing
library, unsupported torch, no GPU); 4 the answer is not known (`fit` of a file
that lacks events); 141 the reader of its output has left (`| head`). `run`
passes the script's own code on.

Standard library only until a command needs more, so that `run` costs the
script nothing.
"""

import argparse
import sys

from stratalloc._terminal import command as _command
from stratalloc._terminal import pipes as _pipes
from stratalloc._terminal.command import CannotRunError, UsageError, depth
from stratalloc._terminal.command import EXIT_CANNOT, EXIT_OK, EXIT_USAGE

_EPILOG = ("exit codes: 0 fine, 1 the job failed, 2 usage, 3 not possible on "
           "this machine or installation, 4 not known, 141 the reader of its "
           "output has left (as in | head); `run` passes the script's own on")


def main(argv=None):
    """Parses and runs; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in _OF_FILES:
        return _pipes.ended(_run_on_files, given)
    args = _pipes.ended(_parsed, given)
    if args.command == "run":  # what it raises is the program's
        code = _answer(args)
        return code if _pipes.written() else code or _pipes.UNREAD
    return _pipes.ended(_answer, args)


def _parsed(given):
    parser, commands = _parser()
    if given and not given[0].startswith("-") and given[0] not in commands:
        import difflib

        nearest = difflib.get_close_matches(given[0].lower(), commands, 1)
        parser.error(f"there is no command {given[0]!r}; " + (
            f"did you mean {nearest[0]!r}?" if nearest
            else "`stratalloc --help` lists them"))
    return parser.parse_args(given)


def _answer(args):
    if args.version:
        from stratalloc import __version__

        print(f"stratalloc {__version__}")
        return EXIT_OK
    if args.command is None:
        _parser()[0].print_help(sys.stderr)
        raise SystemExit(EXIT_USAGE)  # as argparse ends
    try:
        args.json = args.json and _result_file(args.json)
        return args.function(args)
    except Exception as error:  # pylint: disable=broad-except
        code = _refused(args.command, error)
        if code is None:
            raise
        return code


def _refused(command, error):
    """Says on stderr what kept a command from running; the exit code. None for
    any other exception, and for those that the program of `run` ended with."""
    from stratalloc._native.core import LibraryError
    from stratalloc._native.errors import UnsupportedTorchError

    if error is _command.program_error:
        return None
    if isinstance(error, UsageError):
        text = str(error).removeprefix("stratalloc: ")
        _pipes.note(f"stratalloc {command}: {text}")
        return EXIT_USAGE
    if isinstance(error, (LibraryError, CannotRunError,
                          UnsupportedTorchError)):
        _pipes.note(error)
        return EXIT_CANNOT
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        _pipes.note(_command.no_torch(error))
        return EXIT_CANNOT
    return None


# Commands that read recordings, each with a line of its own for --help.
_OF_FILES = {
    "convert": "write a recording in a format of another tool",
    "validate": "say what is wrong with a recording or a converted file",
    "summary": "describe a recording on a page",
    "tree": "memory by owner in a recording",
    "peak": "memory by owner when most of it was allocated",
    "diff": "memory that one recording has more than another, by owner",
    "leaks": "owners that hold more after every step of a recording",
    "report": "write a page for a browser of all that a recording tells",
    "recover": "make a recording of what a killed program left",
    "metrics": "merge the metrics of several processes, by rank",
    "fit": "whether a recording fits a card of another size",
}


def _run_on_files(argv):
    try:
        from stratalloc.telemetry import commands
    except ImportError as error:
        print(f"stratalloc {argv[0]}: this needs packages that are not "
              f"installed ({error}); run `pip install stratalloc`",
              file=sys.stderr)
        return EXIT_CANNOT
    return commands.main(argv)


class _Verb(argparse.ArgumentParser):
    """A command's parser: what it does not know is refused with its usage and
    not with that of `stratalloc`."""

    def parse_known_args(self, args=None, namespace=None):
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _parser():
    """The parser, and those of its commands by name."""
    parser = argparse.ArgumentParser(
        prog="stratalloc", epilog=_EPILOG, allow_abbrev=False,
        description="A CUDA memory allocator for PyTorch that moves cold "
        "parameters to host memory and disk.")
    parser.add_argument("--version", action="store_true",
                        help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="command",
                                     parser_class=_Verb)
    _add_run(commands)
    _add_estimate(commands)
    _add_demo(commands)
    _add_bench(commands)
    _add_doctor(commands)
    _add_top(commands)
    _add_oom(commands)
    for name, meaning in _OF_FILES.items():  # parsed elsewhere
        commands.add_parser(name, help=meaning, add_help=False)
    return parser, commands.choices


def _add_json(parser, what):
    parser.add_argument("--json", metavar="FILE",
                        help=f"write {what} as JSON to FILE (- = stdout; "
                        "everything else then goes to stderr)")


def _result_file(path):
    from stratalloc._terminal.result_file import ResultFile

    try:
        return ResultFile(path)
    except OSError as error:
        raise UsageError(f"--json {path}: nothing can be written there: "
                         f"{error.strerror}") from None


def _add_lines(parser):
    parser.add_argument("--all", action="store_true",
                        help="all lines of the tree, not as many as the "
                        "terminal has")
    parser.add_argument("--depth", type=depth, metavar="N",
                        help="N levels of the tree, with all of their lines")


def _place(text):
    """(address, port) of [ADDRESS:]PORT."""
    address, colon, port = text.rpartition(":")
    bare = address.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16
            # An address of colons has brackets, and no other one.
            and (":" in bare) == (address == f"[{bare}]")
            and (bool(bare) and bare.split() == [bare]) == bool(colon)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not [ADDRESS:]PORT; give a port from 0 to 65535, "
            "and before it an address as in 0.0.0.0:9400 or [::1]:9400")
    return bare or "127.0.0.1", int(port)


def _add_card(parser):
    parser.add_argument("--card", metavar="NAME",
                        help="model a card on the simulated GPU: h200, a100, "
                        "rtx4090, t4, wsl2; time is then virtual")
    parser.add_argument("--profile", metavar="FILE",
                        help="JSON of a card's figures, in place of the "
                        "card's")


def _add_run(commands):
    parser = commands.add_parser(
        "run", epilog=_RUN_EXAMPLES + _EPILOG, allow_abbrev=False,
        formatter_class=_WithExamples,
        help="run a script or module under the allocator",
        usage="stratalloc run [options] (script.py | -m module) [args ...]")
    parser.add_argument("-m", dest="module", action="store_true",
                        help="the target is a module name, as in python -m")
    parser.add_argument("--conf", metavar="k:v,...",
                        help="settings, in place of STRATALLOC_CONF")
    parser.add_argument("--allocator", choices=("stratalloc", "native"),
                        default="stratalloc",
                        help="native: PyTorch's own allocator (stratalloc)")
    _add_simulated(parser.add_argument_group("without a GPU"))
    _add_answers(parser.add_argument_group("reports, recordings, metrics"))
    _add_target(parser)
    parser.set_defaults(function=_run)


def _add_simulated(group):
    group.add_argument("--simulate", metavar="SIZE",
                       help="on simulated GPUs of SIZE (64MiB; card: the "
                       "card's own), no GPU used")
    _add_card(group)
    group.add_argument("--devices", type=int, metavar="N",
                       help="number of simulated GPUs (1)")
    group.add_argument("--mode", choices=("eager", "async"),
                       help="of the simulated streams (eager)")
    group.add_argument("--seed", type=int,
                       help="of the simulated streams' order (0)")
    group.add_argument("--numbers", choices=("on", "off"),
                       help="off: the simulated GPU has shapes and memory "
                       "but computes nothing; for real sizes (on)")


def _add_answers(group):
    group.add_argument("--report", action="store_true",
                       help="print the owners of memory at the peak on stderr, "
                       "when the program has ended or failed")
    _add_lines(group)
    group.add_argument("--live", action="store_true",
                       help="live lines below what the program writes to the "
                       "terminal, and a socket for `stratalloc top`")
    group.add_argument("--metrics", type=_place, metavar="[ADDRESS:]PORT",
                       help="serve metrics for Prometheus while the program "
                       "runs, at ADDRESS (127.0.0.1; [::1]:PORT of IPv6) and "
                       "PORT (0: a free one; of a rank of torchrun: PORT + "
                       "LOCAL_RANK)")
    group.add_argument("--record", metavar="FILE.strata",
                       help="record what happens to memory, into the file; "
                       "FILE.strata.running while the program runs, which "
                       "`stratalloc recover` saves if it is killed")
    group.add_argument("--redact", action="store_true",
                       help="no names of scopes, files and the command in "
                       "the recording")
    _add_json(group, "allocator report and counters after the script")


_RUN_EXAMPLES = """\
examples:
  stratalloc run train.py --epochs 3         a GPU that is too small
  stratalloc run --simulate 24GiB train.py   no GPU
  stratalloc run --report -m package.train   the owners of memory at the peak
  stratalloc run --conf oom_dir:ooms,host_budget:8GiB train.py
                                             why memory ran out
"""


class _WithExamples(argparse.HelpFormatter):
    """Leaves the lines of examples as they are, and folds what follows."""

    def _fill_text(self, text, width, indent):
        if not text.startswith(_RUN_EXAMPLES):
            return super()._fill_text(text, width, indent)
        rest = super()._fill_text(text[len(_RUN_EXAMPLES):], width, indent)
        return f"{_RUN_EXAMPLES}\n{rest}"


def _run(args):
    if not args.report and (args.all or args.depth is not None):
        raise UsageError("--all, --depth: lines of the report; give "
                         "--report as well")
    from stratalloc.cli import runner

    return runner.run(args)


def _add_target(parser):
    """What to run; an error names it as the usage does."""
    parser.add_argument("target", metavar="script.py or module",
                        help=argparse.SUPPRESS)
    # argparse takes what may be empty here for required.
    parser.add_argument("args", nargs=argparse.REMAINDER,
                        help=argparse.SUPPRESS).required = False


def _add_estimate(commands):
    parser = commands.add_parser(
        "estimate", epilog=_EPILOG, allow_abbrev=False,
        help="what a script needs on a card, by owner, without the card",
        usage="stratalloc estimate --card NAME [options] (script.py | "
        "-m module) [args ...]")
    _add_card(parser)
    parser.add_argument("--numbers", choices=("on", "off"), default="off",
                        help="on: compute, too, for scripts that decide by "
                        "values (off)")
    _add_lines(parser)
    _add_json(parser, "peaks by owner")
    parser.add_argument("-m", dest="module", action="store_true",
                        help="the target is a module name, as in python -m")
    _add_target(parser)
    parser.set_defaults(function=_estimate)


def _estimate(args):
    if not args.card:
        raise UsageError("--card NAME says which card is estimated: h200, "
                         "a100, rtx4090, t4, wsl2")
    from stratalloc.cli import estimate

    return estimate.main(args)


def _add_demo(commands):
    parser = commands.add_parser(
        "demo", epilog=_EPILOG, allow_abbrev=False,
        help="a real model that does not fit its GPU")
    parser.add_argument("--device", choices=("sim", "cuda"), default="sim",
                        help="simulated GPU (default) or the real one")
    parser.add_argument("--gpu-memory", default="64MiB", metavar="SIZE",
                        help="of the GPU; on a real one a limit (64MiB)")
    parser.add_argument("--host-budget", default="32MiB", metavar="SIZE",
                        help="pinned host memory for evicted blocks (32MiB)")
    _add_card(parser)
    parser.add_argument("--sabotage", metavar="LAYER",
                        help="spoil the weights of one layer on the GPU, which "
                        "the demo must notice")
    _add_json(parser, "the results")
    parser.set_defaults(function=_demo)


def _demo(args):
    from stratalloc.demo import story

    return story.main(args)


def _add_bench(commands):
    parser = commands.add_parser(
        "bench", epilog=_EPILOG, allow_abbrev=False,
        help="measure the allocator against torch's own")
    parser.add_argument("--device", choices=("sim", "cuda"), default="sim",
                        help="simulated GPU (default) or the real one")
    parser.add_argument("--rounds", type=int, default=15, metavar="N",
                        help="interleaved rounds per benchmark (15)")
    parser.add_argument("--trace", action="append", default=[],
                        metavar="FILE", help="replay a recorded trace, too "
                        "(tests/system/replay); may be repeated")
    _add_json(parser, "the figures")
    parser.set_defaults(function=_bench)


def _bench(args):
    from stratalloc.bench import main as bench

    return bench.main(args)


def _add_top(commands):
    parser = commands.add_parser(
        "top", epilog=_EPILOG, allow_abbrev=False,
        help="look at a live process: tiers, traffic, waiting, owners",
        description="Keys: t, p, c sort owners by total, peak and churn (bytes "
        "that leave the device and come back, per second); q quits.")
    parser.add_argument("--pid", type=int, metavar="N",
                        help="the process (the only one that can be seen)")
    parser.add_argument("--interval", default="1", metavar="S",
                        help="seconds from one look to the next, 0.5 or more "
                        "(1)")
    parser.add_argument("--once", action="store_true",
                        help="one page, without a screen")
    _add_json(parser, "one sample")
    parser.set_defaults(function=_top)


def _top(args):
    from stratalloc._live import top

    return top.main(args)


def _add_oom(commands):
    parser = commands.add_parser(
        "oom", epilog=_EPILOG, allow_abbrev=False,
        help="why a program was out of memory, from what it left in oom_dir")
    parser.add_argument("directory", metavar="DIR",
                        help="a bundle (oom_...), or the directory that has "
                        "them: its newest")
    _add_json(parser, "the report")
    parser.set_defaults(function=_oom)


def _oom(args):
    from stratalloc._oom import command

    return command.main(args)


def _add_doctor(commands):
    parser = commands.add_parser(
        "doctor", epilog=_EPILOG, allow_abbrev=False,
        help="what this machine and installation can do")
    _add_json(parser, "the findings")
    parser.set_defaults(function=_doctor)


def _doctor(args):
    from stratalloc.cli import doctor

    return doctor.main(args)
