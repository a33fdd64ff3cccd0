# SPDX-License-Identifier: Apache-2.0
"""`stratalloc oom` on bundles that are whole, foreign and damaged."""

import json
import os
import subprocess
import sys

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402

from ooms import (  # noqa: E402,F401
    MIB, enabled, load, nothing_is_left, only, oom_dir, refused)
import stratalloc  # noqa: E402
from stratalloc.cli import command_line as cli  # noqa: E402


def test_what_is_no_bundle(tmp_path, capsys):
    assert cli.main(["oom", str(tmp_path / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err
    assert cli.main(["oom", str(tmp_path)]) == 2
    assert "no bundle" in capsys.readouterr().err
    for manifest, report in (("{}", "{}"), ("{\"files\": {}}", "[]"),
                             ("{\"files\": {}}", "{\"schema\": 99}"),
                             ("[" * 9999, "{}"), ("{\"files\": {}}", None)):
        folder = tmp_path / "oom_1"
        os.makedirs(folder, exist_ok=True)
        (folder / "manifest.json").write_text(manifest)
        (folder / "report.json").unlink(missing_ok=True)
        if report is not None:
            (folder / "report.json").write_text(report)
        assert cli.main(["oom", str(folder)]) == 1
        assert str(folder) in capsys.readouterr().err


def changed(values, path, value):
    """A copy of JSON values with this at the end of a path of keys."""
    copy = json.loads(json.dumps(values))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


def paths(values, before=()):
    """Of everything inside of it."""
    inside = (values.items() if isinstance(values, dict) else
              enumerate(values[:1]) if isinstance(values, list) else ())
    for key, value in inside:
        yield (*before, key)
        yield from paths(value, (*before, key))


@pytest.fixture(name="made")
def _made(oom_dir):
    """(folder, the report's JSON, the manifest's) of one with something in each
    section."""
    pieces = [torch.empty(3 * MIB // 2, dtype=torch.uint8, device="cuda")
              for _ in range(8)]
    del pieces[::2]
    stratalloc.mark("before")
    with stratalloc.scope("after"):
        pieces.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
    refused()
    folder = only(oom_dir)
    return folder, load(folder, "report.json"), load(folder, "manifest.json")


def told_of(folder, report, manifest, capfd):
    """(exit code, what was printed) where the bundle has these."""
    for name, values in (("report", report), ("manifest", manifest)):
        with open(os.path.join(folder, f"{name}.json"), "w",
                  encoding="utf-8") as file:
            json.dump(values, file)
    code = cli.main(["oom", folder])
    return code, "".join(capfd.readouterr())


def test_no_escape_of_a_foreign_bundle_reaches_a_terminal(made, capfd):
    folder, report, manifest = made
    evil = "\x1b]0;evil\x07\x1b[2J\u202e"
    for path in paths(report):
        if path == ("schema",):
            continue
        code, text = told_of(folder, changed(report, path, evil), manifest,
                             capfd)
        assert code in (0, 1)
        assert "\x1b" not in text and "\u202e" not in text, path
    for one in ({**manifest, "files": {evil: 3}},
                {**manifest, "left_out": {evil: evil}}):
        code, text = told_of(folder, report, one, capfd)
        assert code == 0 and "evil" in text
        assert "\x1b" not in text and "\u202e" not in text
    stays = changed(report, ("facts", "stays"), {evil: 3})
    code, text = told_of(folder, stays, manifest, capfd)
    assert code == 0 and "\x1b" not in text


@pytest.mark.parametrize("value", [
    None, -1, float("inf"), "x", {}, 10 ** 400, *(
        pytest.param(each, marks=pytest.mark.long) for each in (
            0, 1.5, float("nan"), [], [[]], [1], True))])
def test_anything_in_place_of_anything_is_no_traceback(made, capfd, value):
    folder, report, manifest = made
    assert report["facts"]["holes"] and report["facts"]["changed"]["rows"]
    for path in paths(report):
        code, text = told_of(folder, changed(report, path, value), manifest,
                             capfd)
        assert code in (0, 1), path
        assert code == 0 or "damaged" in text or "no JSON" in text, text
    for name in manifest:
        assert told_of(folder, report, {**manifest, name: value}, capfd)[
            0] in (0, 1)


def test_a_number_that_is_none_and_a_hole_of_nothing_are_damage(made, capfd):
    folder, report, manifest = made
    hole = changed(report, ("facts", "holes", 0, "bytes"), 0)
    code, text = told_of(folder, hole, manifest, capfd)
    assert code == 1 and "ZeroDivisionError" in text
    for text in ("Infinity", "1e999", "NaN"):
        with open(os.path.join(folder, "report.json"), "w",
                  encoding="utf-8") as file:
            file.write(json.dumps(report).replace(
                '"schema": 1', f'"schema": 1, "more": {text}'))
        assert cli.main(["oom", folder]) == 1
        assert "is no number of a report" in capfd.readouterr().err


def test_a_pipe_in_a_bundle_is_not_waited_for(made, capfd):
    folder, _, _ = made
    os.unlink(os.path.join(folder, "report.json"))
    os.mkfifo(os.path.join(folder, "report.json"))
    assert cli.main(["oom", folder]) == 1
    assert "it is a pipe" in capfd.readouterr().err


def test_a_bundle_needs_no_packages_to_be_read(oom_dir):
    refused()
    hidden = "import sys; sys.modules.update(numpy=None, torch=None, " \
             "typer=None, rich=None); from stratalloc import cli; " \
             "raise SystemExit(cli.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "oom", str(oom_dir)],
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Verdict: over the device's capacity" in done.stdout


@pytest.mark.parametrize("words", [(), ("--json", "-")])
def test_oom_without_a_reader_ends_quietly_with_141(made, words):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "oom", made[0], *words],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
