# SPDX-License-Identifier: Apache-2.0
"""The commands on files: answers, exit codes, and files that nobody should
open."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import pytest

import made_recordings
from bazel import programs
from stratalloc.cli import command_line as cli
from stratalloc.telemetry import commands, recording
from stratalloc.telemetry.formats import FORMATS


@pytest.fixture(name="file")
def _file(tmp_path):
    path = tmp_path / "r.strata"
    path.write_bytes(made_recordings.file_of(*made_recordings.two_blocks()))
    return str(path)


def run(capsys, *argv):
    """(exit code, stdout, stderr); no traceback, whatever was given."""
    code = cli.main([str(one) for one in argv])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


def answer(capsys, *argv):
    # Not "-": that is the process's own stdout from then on.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "answer")
        code, _, _ = run(capsys, *argv, "--json", path)
        with open(path, encoding="utf-8") as found:
            return code, json.load(found)


@pytest.mark.parametrize("command", ["summary", "tree", "peak", "leaks"])
def test_each_answers_for_people_and_for_machines(capfd, file, command):
    code, out, error = run(capfd, command, file)
    assert (code, error) == (0, "") and out
    code, found = answer(capfd, command, file)
    assert code == 0 and isinstance(found, dict)


@pytest.mark.parametrize("command", sorted(
    command.name or command.callback.__name__
    for command in commands.app.registered_commands))
def test_verb_has_its_help_under_both_options(capfd, command):
    short, long = (run(capfd, command, option) for option in ("-h", "--help"))
    assert short == long
    assert short[0] == 0 and f"stratalloc {command}" in short[1]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [
    ["summary"], ["peak"], ["fit", "--capacity", "1B"], ["tree", "--json", "-"]])
def test_command_without_a_reader_ends_quietly_with_141(file, words,
                                                        unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", words[0], file, *words[1:]],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_tree_adds_up(capfd, file):
    for at, total in (("start", 512), ("end", 1024)):
        code, found = answer(capfd, "tree", file, "--at", at)
        assert code == 0
        assert found["total"] == total == sum(
            row["bytes"] for row in found["rows"])


@pytest.mark.parametrize("command", ["tree", "peak", "leaks", "diff"])
def test_rows_by_module_are_those_by_owner(capfd, file, command):
    files = [file] * (2 if command == "diff" else 1)
    code, out, error = run(capfd, command, *files, "--by", "owner")
    assert (code, error) == (0, "") and out
    assert run(capfd, command, *files) == (0, out, "")
    assert run(capfd, command, *files, "--by", "module") == (0, out, "")
    code, out, error = run(capfd, command, *files, "--by", "layer")
    assert (code, out) == (2, "")
    assert "'layer' is not one of 'owner', 'category', 'site'" in error


def test_too_few_steps_are_not_nothing_that_grows(capfd, file):
    _, out, _ = run(capfd, "leaks", file)
    assert "12 steps are needed to see what grows" in out and "nothing grows" not in out


@pytest.mark.parametrize("words", [
    ["summary"], ["tree"], ["peak"], ["leaks"], ["diff"], ["validate"],
    ["report"], ["fit", "--capacity", "1GiB"], ["convert", "--to", "csv", "-o", "made"]])
def test_each_says_to_machines_what_it_lacks_and_what_that_cost(
        capfd, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    head, events = made_recordings.two_blocks()
    head.update(overwritten=7, overhead_ns=55, names_lost=3, stacks_lost=2,
                complete_from=30)
    for name in "ab":
        (tmp_path / name).write_bytes(made_recordings.file_of(head, events))
        head["overwritten"] += 1
    files = ["a", "b"] if words == ["diff"] else ["a"]
    code, found = answer(capfd, words[0], *files, *words[1:])
    said = found["recording"] if words == ["diff"] else [found["recording"]]
    assert code == (4 if words[0] == "fit" else 0)
    assert [one["dropped_events"] for one in said] == [7, 8][:len(files)]
    for one in said:
        assert one["exact"] is False and "7 events are" in said[0]["missing"]
        assert (one["overhead_ns"], one["names_lost"], one["stacks_lost"],
                one["complete_from_ns"]) == (55, 3, 2, 30)


@pytest.mark.parametrize("command", ["tree", "peak", "leaks", "fit",
                                     "validate"])
def test_what_an_answer_lacks_is_said_beside_it(capfd, tmp_path, command):
    head, events = made_recordings.two_blocks()
    path = tmp_path / "lossy.strata"
    more = ["--capacity", "1GiB"] if command == "fit" else []
    for head["complete_from"], says in (
            (30, f"{path}: 7 events are missing (overwritten before they were "
             "read, of threads that found no ring, or of unknown kinds); "
             "what is told of the time before 0.000 s lacks some; the peak is "
             "of the recorded part\n"),
            (2**62 - 1, "kinds); what is told lacks some; the peak is of the "
             "recorded part\n")):
        head["overwritten"] = 7
        path.write_bytes(made_recordings.file_of(head, events))
        code, out, error = run(capfd, command, path, *more)
        assert code == (4 if command == "fit" else 0)
        assert out and says in error
        assert says.removesuffix("\n").rpartition(": ")[2] in run(
            capfd, "summary", path)[1]


def test_a_diff_of_a_file_with_itself_is_nothing(capfd, file):
    code, found = answer(capfd, "diff", file, file)
    assert (code, found["total"], found["rows"]) == (0, 0, [])


def test_fit_says_no_with_1(capfd, file):
    assert run(capfd, "fit", file, "--capacity", "1GiB")[0] == 0
    code, found = answer(capfd, "fit", file, "--capacity", "1MiB")
    assert code == 1 and found["fits"] is False


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_converted_is_fine(capfd, tmp_path, file, form):
    made = tmp_path / "made"
    code, _, error = run(capfd, "convert", file, "--to", form, "-o", made)
    assert code == 0, error
    if made.is_dir():  # TensorBoard's
        made, = made.iterdir()
    code, found = answer(capfd, "validate", made, "--format", form)
    assert (code, found["findings"]) == (0, [])


def test_a_recording_that_does_not_add_up_is_a_finding(capfd, tmp_path):
    head, events = made_recordings.two_blocks()
    events["address"][3] += 512
    path = tmp_path / "wrong"
    path.write_bytes(made_recordings.file_of(head, events))
    code, found = answer(capfd, "validate", path)
    assert code == 1 and found["findings"]


@pytest.mark.parametrize("argv, code, says", [
    (("summary", "no.such.file"), 2, "there is no file no.such.file"),
    (("summary",), 2, "Missing"),
    (("summary", "--nope"), 2, "--nope"),
    (("convert", "FILE", "--to", "nope", "-o", "x"), 2, "speedscope"),
    (("convert", "FILE", "--to", "csv", "-o", "/no/such/x"), 1,
     "cannot be written: No such file"),
    (("convert", "FILE", "--to", "csv", "-o", "/dev/full"), 1,
     "No space left"),
    (("fit", "FILE", "--capacity", "lots"), 2, "not a size"),
    (("fit", "FILE", "--capacity", "1GiB", "--policy", "best"), 2, "one of"),
    (("fit", "FILE", "--capacity", "1GiB", "--bandwidth", "0"), 2,
     "GB/s above 0"),
    *((("fit", "FILE", "--capacity", "1GiB", "--policy", "tiering",
        "--bandwidth", one), 2, f"--bandwidth {float(one)}: give GB/s")
      for one in ("1e300", "1e-320", "nan", "inf", "-1")),
    (("fit", "FILE", "--capacity", "\u0661GiB"), 2, "not a size"),
    (("convert", "FILE", "--to", "csv", "-o", ""), 2, "the name is empty"),
    (("recover", "FILE", "-o", ""), 2, "the name is empty"),
    (("summary", "FILE", "--json", ""), 2, "the name is empty"),
    (("tree", "FILE", "--device", "3"), 2, "the file has 0"),
    (("validate", "FILE", "--format", "nope"), 2, "one of"),
    (("summary", "FILE", "--json", "/no/such/x"), 2, "nothing can be written"),
    (("summary", "/"), 1, "Is a directory"),
])
def test_what_cannot_be_is_said(capfd, file, argv, code, says):
    found, out, error = run(capfd, *(file if one == "FILE" else one
                                     for one in argv))
    assert (found, out) == (code, ""), error
    assert says in error and error.count("\n") <= 2


def test_memory_that_is_not_there_is_said(capfd, file, monkeypatch):
    def read(path):
        raise MemoryError

    monkeypatch.setattr(recording, "read", read)
    code, out, error = run(capfd, "summary", file)
    assert (code, out) == (1, "") and "not enough memory" in error


@pytest.fixture(name="pipe")
def _pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


@pytest.mark.parametrize("words", [
    ["summary"], ["tree"], ["peak"], ["leaks"], ["diff", "FILE"],
    ["fit", "--capacity", "1GiB"], ["convert", "--to", "csv", "-o", "made"],
    ["validate"], ["report"], ["recover", "-o", "made"],
    *(["validate", "--format", one] for one in FORMATS)])
def test_nobody_waits_for_a_pipe(tmp_path, file, pipe, words):
    """In a process of its own: it is ended where it waits."""
    words = [file if one == "FILE" else one for one in words]
    at = 2 if words[0] == "diff" else 1
    done = programs.run("-m", "stratalloc", *words[:at], pipe, *words[at:],
                        timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and "it is a pipe" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [
    *(["convert", "--to", one, "-o"] for one in FORMATS),
    ["report", "-o"], ["summary", "--json"],
    ["fit", "--capacity", "1GiB", "--json"]])
def test_nobody_waits_for_a_reader_of_a_pipe(tmp_path, file, pipe, words):
    done = programs.run("-m", "stratalloc", words[0], file, *words[1:], pipe,
                        timeout=60, cwd=tmp_path)
    assert done.returncode == 1, done
    if "tensorboard" not in words:  # which writes a folder
        assert "nobody reads from this pipe" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_does_not_take_the_place_of_what_is_written(capfd, tmp_path,
                                                             file):
    made = tmp_path / "made.csv"
    code, out, error = run(capfd, "convert", file, "--to", "csv", "-o", made,
                           "--json", made)
    assert (code, out) == (2, "") and "it is -o's file, too" in error
    assert not made.exists()


@pytest.mark.parametrize("words", [
    ["recover", "FILE", "-o"], ["convert", "FILE", "--to", "csv", "-o"],
    ["report", "FILE", "-o"], ["report", "OTHER", "FILE", "-o"],
    ["summary", "FILE", "--json"], ["diff", "FILE", "OTHER", "--json"],
    ["diff", "OTHER", "FILE", "--json"]])
@pytest.mark.parametrize("through", ["itself", "a link", "a hard link"])
def test_what_is_read_is_not_written_over(capfd, tmp_path, file, words,
                                          through):
    whole, names = pathlib.Path(file).read_bytes(), {"FILE": file}
    names["OTHER"] = tmp_path / "other"
    names["OTHER"].write_bytes(whole)
    to = file if through == "itself" else tmp_path / "link"
    if through == "a link":
        to.symlink_to(file)
    elif through == "a hard link":
        to.hardlink_to(file)
    code, out, error = run(capfd, *(names.get(one, one) for one in words), to)
    assert (code, out) == (2, "") and "it is the file that is read" in error
    assert pathlib.Path(file).read_bytes() == whole


@pytest.mark.parametrize("words", [["recover"], ["report"],
                                   ["convert", "--to", "csv"]])
def test_stdout_is_no_place_for_a_file(capfd, tmp_path, monkeypatch, file,
                                       words):
    monkeypatch.chdir(tmp_path)
    before = os.listdir(tmp_path)
    code, out, error = run(capfd, words[0], file, *words[1:], "-o", "-")
    assert (code, out) == (2, "") and "-o -" in error and "stdout" in error
    assert os.listdir(tmp_path) == before


@pytest.mark.parametrize("held", [b"", b"what?", b"{}", b"\x80\x04."])
def test_an_error_names_the_file_of_several(capfd, tmp_path, file, held):
    bad = tmp_path / "bad"
    bad.write_bytes(held)
    for names in ([file, bad], [bad, file]):
        code, _, error = run(capfd, "diff", *names)
        assert code == 1 and str(bad) in error and file not in error


def test_a_file_of_no_known_format_hears_of_format(capfd, tmp_path, file):
    for form in ("speedscope", "csv", "pprof"):
        made = tmp_path / form
        run(capfd, "convert", file, "--to", form, "-o", made)
        code, _, error = run(capfd, "validate", made)
        assert code == 1 and "--format speedscope, " in error


@pytest.mark.parametrize("inputs", [
    200, pytest.param(600, marks=pytest.mark.long)])
def test_no_damaged_file_is_more_than_an_error(capfd, tmp_path, inputs):
    """Bytes turned, cut and doubled: an answer or a sentence, never more."""
    good = made_recordings.file_of(*made_recordings.two_blocks())
    chance = random.Random(11)
    path = tmp_path / "damaged"
    codes = set()
    for _ in range(inputs):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < .3:
            del data[chance.randrange(len(data)):]
        elif chance.random() < .2:
            data = data + data
        path.write_bytes(data)
        code, _, error = run(capfd, chance.choice(("summary", "tree",
                                                   "validate")), path)
        assert code in (0, 1) and error.count("\n") <= 1
        codes.add(code)
    assert codes == {0, 1}


_WITHOUT = """
import sys
gone = sys.argv[1].split(",")
class Gone:
    def find_spec(self, name, path=None, target=None):
        if any((name + ".").startswith(one + ".") for one in gone):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Gone())
from stratalloc.cli import command_line as cli
for words in sys.argv[2:]:
    try:
        code = cli.main(words.split())
    except SystemExit as end:
        code = end.code
    print("exit code", code, flush=True)
"""


def without(package, *commands):
    """([exit code of each], stderr) of a process that lacks a package, or
    several with commas between them."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, package, *commands], check=True,
        capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()
            if line.startswith("exit code ")], done.stderr


@pytest.mark.parametrize("package, command", [
    ("typer", "summary FILE"), ("numpy", "tree FILE")])
def test_missing_requirement_names_the_wheel(file, package, command):
    codes, error = without(package, command.replace("FILE", file))
    assert codes == [3], error
    assert package in error and "`pip install stratalloc`" in error


def test_everyday_commands_need_no_package_of_an_extra(tmp_path, file):
    from importlib import metadata

    extra = {one.split(" ")[0].replace("_", "-")
             for one in metadata.requires("stratalloc")
             if one.endswith("extra == 'telemetry'")}
    gone = [name for name, owners in metadata.packages_distributions().items()
            if extra & {one.replace("_", "-") for one in owners}]
    assert {"google", "pyarrow", "prometheus_client"} <= set(gone)
    words = [f"summary {file}", f"tree {file}", f"peak {file}",
             f"report {file} -o {tmp_path}/page", "top --pid 4194304",
             "doctor", "run --allocator native -m this"]
    codes, error = without(",".join(gone), *words)
    # `top` finds no such process; `doctor` depends on the machine.
    assert codes[:5] == [0, 0, 0, 0, 1] and codes[5] in (0, 3), error
    assert codes[6:] == [0] and "No module" not in error, error


@pytest.mark.parametrize("package, command", [
    ("google.protobuf", "convert FILE --to perfetto -o OUT"),
    ("google.protobuf", "convert FILE --to pprof -o OUT"),
    ("pyarrow", "convert FILE --to parquet -o OUT"),
    ("prometheus_client", "convert FILE --to prometheus -o OUT"),
    ("opentelemetry", "convert FILE --to otel -o OUT"),
    ("tensorboard", "convert FILE --to tensorboard -o OUT"),
    ("pyarrow", "validate FILE --format parquet"),
    ("tensorboard", "validate FILE --format tensorboard"),
    ("prometheus_client", "validate FILE --format openmetrics")])
def test_without_its_package_a_command_says_what_to_install(tmp_path, file,
                                                            package, command):
    command = command.replace("FILE", file).replace("OUT",
                                                    str(tmp_path / "out"))
    codes, error = without(package, command)
    assert codes == [3], error
    assert package in error and 'pip install "stratalloc[telemetry]"' in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["torch", "rich"])
def test_what_a_file_does_not_need_may_be_missing(tmp_path, file, package):
    """A machine that only looks at recordings has no torch."""
    words = [f"{one} {file}" for one in ("summary", "tree", "peak",
                                             "leaks", "validate")]
    words += [f"diff {file} {file}", f"fit {file} --capacity 1GiB",
              f"report {file} -o {tmp_path}/page"]
    words += [f"convert {file} --to {one} -o {tmp_path}/{one}"
                  for one in FORMATS]
    codes, error = without(package, *words)
    assert (codes, error) == ([0] * len(words), "")
    codes, error = without(package, f"recover {file} -o {tmp_path}/no")
    assert codes == [1] and "is not a file of event rings" in error
