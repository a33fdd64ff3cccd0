# SPDX-License-Identifier: Apache-2.0
"""Exit codes, lines and errors where stratalloc is not in place.

Most cases run the command in a fork of this process, which has imported torch
and never uses CUDA.
"""

import logging
import os
import socket
import subprocess
import sys
import traceback

import pytest
import torch

import stratalloc
from stratalloc.cli import command_line as cli
from stratalloc._reports import diff as _diff
from stratalloc._native import bridge as _bridge
from stratalloc._native import core as _core
from stratalloc._native import gpus as _gpus
from stratalloc._native import state as _state

PROGRAM = "print('started')\n"


def _in_fork(function, folder, **environment):
    """function() in a fork: (its exit code, stdout, stderr)."""
    texts = [folder.parent / f"{folder.name}.{name}" for name in ("out", "err")]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            for number, text in enumerate(texts, 1):
                os.dup2(os.open(text, os.O_CREAT | os.O_WRONLY | os.O_TRUNC),
                        number)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
            logging.getLogger().handlers.clear()  # those of pytest
            os.chdir(folder)
            os.environ.update(environment)
            code = function() or 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # pylint: disable=protected-access
    _, status = os.waitpid(pid, 0)
    return (os.waitstatus_to_exitcode(status),
            *(text.read_text() for text in texts))


@pytest.fixture(name="program")
def _program(tmp_path):
    """A folder with a program in it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    return folder


def _has_a_gpu():
    _gpus.why_none = lambda torch: None


def _other_minor():
    _bridge.supported = lambda: ["2.7"]


def _other_backend():
    torch.cuda.memory.get_allocator_backend = lambda: "cudaMallocAsync"


def _initialised():
    torch.cuda.is_initialized = lambda: True


def _no_bridge():
    def missing(name):
        raise _core.LibraryError(f"stratalloc: {name} is missing")

    _core.library_path = missing


def _install_fails():
    def fail():
        raise RuntimeError("stratalloc: torch refuses the swap")

    _has_a_gpu()
    _bridge.install = fail


# (what is so in the process, its environment, a part of the line)
_REASONS = {
    "forbidden": (_has_a_gpu, {"STRATALLOC": "0"}, "STRATALLOC=0"),
    "unsupported torch": (_other_minor, {}, "which has those of torch 2.7"),
    "no bridge": (_no_bridge, {}, "is missing"),
    "other backend": (_other_backend, {}, "already 'cudaMallocAsync'"),
    "initialised": (_initialised, {}, "CUDA is already initialised"),
    "no GPU": (lambda: None, {"CUDA_VISIBLE_DEVICES": ""}, "there is no GPU"),
    "swap refused": (_install_fails, {}, "torch refuses the swap"),
}
_OPTIONS = {
    "plain": (), "report": ("--report",), "record": ("--record", "r.strata"),
    "live": ("--live",), "metrics": ("--metrics", "0"),
    "json": ("--json", "result.json"),
    "all": ("--report", "--record", "r.strata", "--live", "--metrics", "0",
            "--redact", "--json", "result.json"),
}


@pytest.mark.parametrize("options", _OPTIONS)
@pytest.mark.parametrize("reason", _REASONS)
def test_run_without_the_allocator_exits_3_before_the_program(
        reason, options, program):
    set_up, environment, said = _REASONS[reason]

    def run():
        set_up()
        return cli.main(["run", *_OPTIONS[options], "program.py"])

    code, out, error = _in_fork(run, program, **environment)
    assert (code, out) == (3, ""), error
    line, = error.splitlines()
    assert said in line and line.startswith("stratalloc")
    assert os.listdir(program) == ["program.py"]


@pytest.mark.parametrize("reason", _REASONS)
def test_run_with_native_allocator_starts_the_program(reason, program):
    set_up, environment, _ = _REASONS[reason]

    def run():
        set_up()
        return cli.main(["run", "--allocator", "native", "program.py"])

    assert _in_fork(run, program, **environment) == (0, "started\n", "")


def test_error_of_the_program_is_not_the_commands(program):
    """It may be one that ends commands: it goes on to the interpreter."""
    (program / "program.py").write_text(
        "from stratalloc import simulate\n"
        "raise simulate.NotInstalledError('of the program')\n")

    def run():
        return cli.main(["run", "--allocator", "native", "program.py"])

    code, _, error = _in_fork(run, program)
    assert code == 70 and "NotInstalledError: of the program" in error
    assert "Traceback" in error and "program.py" in error


def test_metrics_port_in_use_leaves_no_recording(program):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        def run():
            _has_a_gpu()
            return cli.main(["run", "--record", "r.strata", "--metrics", port,
                             "program.py"])

        code, out, error = _in_fork(run, program)
    assert (code, out) == (2, "") and "--metrics" in error, error
    assert os.listdir(program) == ["program.py"]


@pytest.mark.parametrize("command", [
    ("demo",), ("bench",), ("estimate", "--card", "t4", "program.py")])
def test_command_under_stratalloc_0_exits_3(command, program):
    code, out, error = _in_fork(lambda: cli.main(list(command)), program,
                                STRATALLOC="0")
    assert (code, out) == (3, ""), error
    line, = error.splitlines()
    assert line.startswith(f"stratalloc {command[0]}: STRATALLOC=0")
    assert "--allocator" not in line


_REPLACES = """
import sys, torch
from torch.cuda.memory import CUDAPluggableAllocator, change_current_allocator
change_current_allocator(CUDAPluggableAllocator("libc.so.6", "malloc", "free"))
kept = torch.empty(1024, device="cuda")
how = sys.argv[1]
if how == "raise":
    [][1]
sys.exit(int(how))
"""


@pytest.mark.parametrize("how, code", [("0", 3), ("7", 7), ("raise", 1)])
def test_run_of_program_that_replaces_the_allocator(how, code, program):
    (program / "program.py").write_text(_REPLACES)
    (program / "r.strata").write_text("of an earlier run")
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--simulate", "64MiB",
         *_OPTIONS["all"], "program.py", how], cwd=program, text=True,
        capture_output=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    said = [line for line in done.stderr.splitlines() if "in place" in line]
    assert len(said) == 1 and "change_current_allocator" in said[0]
    assert "held no memory" not in done.stderr
    assert ("IndexError" in done.stderr) == (how == "raise")
    assert sorted(os.listdir(program)) == ["program.py", "r.strata",
                                           "result.json"]
    assert (program / "r.strata").read_text() == "of an earlier run"
    assert f'"exit_code": {code}' in (program / "result.json").read_text()


# Every public name that neither asks about memory nor moves it.
_NO_QUESTIONS = {
    "allocator", "annotate", "compile_per_layer", "enable", "is_enabled",
    "library", "metrics_collector", "on_oom", "scope", "serve_metrics",
    "write_metrics"}
_ARGUMENTS = {
    "diff": (_diff.Mark("a", 0, 0, {}),), "dump": ("a.strata",),
    "explain": ("1 MiB",), "limit": ("1 MiB", "scope"), "pin": (torch.ones(1),),
    "residency": (torch.ones(1),), "unpin": (torch.ones(1),), "watch": (torch.nn.Linear(1, 1),)}


def _questions():
    """name -> the call."""
    found = {}
    for name in set(stratalloc.__all__) - _NO_QUESTIONS:
        arguments = _ARGUMENTS.get(name, ())
        function = getattr(stratalloc, name)
        if isinstance(function, type):
            continue  # of results and errors
        if name == "trace":
            found[name] = lambda function=function: function().__enter__()
        else:
            found[name] = lambda function=function, arguments=arguments: (
                function(*arguments))
    return found


def _answers():
    """name -> the text of what the question raises; "" if it answers."""
    found = {}
    for name, ask in _questions().items():
        try:
            ask()
            found[name] = ""
        except stratalloc.NotEnabledError as error:
            found[name] = str(error)
    return found


def test_question_before_enable_raises_one_text(program):
    def ask():
        answers = _answers()
        texts = set(answers.values())
        assert len(answers) >= 20 and len(texts) == 1, answers
        text, = texts
        assert text.startswith("stratalloc: not enabled: call stratalloc.enable"
                               "() before the first use of CUDA"), text
        assert not torch.cuda.is_initialized() and not _core.loaded()

    code, _, error = _in_fork(ask, program)
    assert code == 0, error


def test_question_after_native_initialisation_raises(program):
    def ask():
        _initialised()
        assert "not enabled" in min(_answers().values())

    code, _, error = _in_fork(ask, program)
    assert code == 0, error


def test_stratalloc_0_wins_over_enable(program):
    def ask():
        assert [stratalloc.enable(), stratalloc.enable(tiering=False)] == [
            False, False]
        for way in (stratalloc.allocator, stratalloc.library):
            with pytest.raises(stratalloc.NotEnabledError,
                               match="STRATALLOC=0"):
                way()
        answers = _answers()
        # As enable() returned False, so that the program runs on.
        assert answers.pop("disable") == "" and stratalloc.disable() == 0
        text, = set(answers.values())
        assert "STRATALLOC=0 in the environment" in text
        assert not stratalloc.is_enabled() and not _core.loaded()
        assert torch.cuda.memory.get_allocator_backend() == "native"

    code, _, error = _in_fork(ask, program, STRATALLOC="0")
    assert code == 0, error
    line, = error.splitlines()
    assert "STRATALLOC=0" in line and "PyTorch's allocator stays" in line


def test_stratalloc_0_after_enable_changes_nothing(program):
    def ask():
        assert stratalloc.enable()
        os.environ["STRATALLOC"] = "0"  # for children
        assert stratalloc.enable() and stratalloc.config().tiering

    code, _, error = _in_fork(ask, program, CUDA_VISIBLE_DEVICES="")
    assert code == 0, error


def test_question_after_enable_without_gpu_answers_nothing(program):
    def ask():
        assert stratalloc.enable()
        questions = _questions()
        for name in ("stats", "report"):
            assert questions[name]() == {}
        for name in ("holders", "peak", "mark"):
            assert questions[name]().total == 0, name
        assert questions["peak"]().at == "peak"
        assert questions["fragmentation"]().reserved == 0
        assert questions["diff"]().total == 0
        assert "not initialised" in questions["memory_summary"]()
        assert questions["evict"]() == questions["restore"]() == 0
        assert questions["telemetry_level"]() == "counters"
        for name in ("explain", "limit"):  # which are about a device
            with pytest.raises((RuntimeError, AssertionError)) as raised:
                questions[name]()
            assert not isinstance(raised.value, stratalloc.NotEnabledError)

    code, _, error = _in_fork(ask, program, CUDA_VISIBLE_DEVICES="")
    assert code == 0, error


def test_question_after_another_allocator_took_the_place_raises(program):
    def ask():
        assert stratalloc.enable()
        _state.is_enabled = lambda: False
        _initialised()
        text, = {text for name, text in _answers().items()
                 if name not in ("config", "watch")}
        assert "another CUDA allocator took its place" in text

    code, _, error = _in_fork(ask, program, CUDA_VISIBLE_DEVICES="")
    assert code == 0, error


def test_handed_out_allocator_answers_until_cuda_is_used(program):
    def ask():
        assert stratalloc.allocator() is not None
        assert not stratalloc.is_enabled()
        assert stratalloc.stats() == {} and stratalloc.holders().total == 0
        assert stratalloc.config().tiering

    code, _, error = _in_fork(ask, program, CUDA_VISIBLE_DEVICES="")
    assert code == 0, error


def test_annotate_before_enable_charges_nothing():
    done = subprocess.run(
        [sys.executable, "-c", "import torch, stratalloc; "
         "print(stratalloc.annotate(torch.ones(4), 'kv cache'))"],
        capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
