# SPDX-License-Identifier: Apache-2.0
"""Every snippet of the repository's text runs, or is what it says it is."""

import os
import re

import pytest

from tests.system.snippets import (
    commands, extract, manifest, spans, verdicts, walks)

# Bazel links the declared file back to the checkout, where all pages are.
_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))


@pytest.fixture(name="found", scope="module")
def _found(tmp_path_factory):
    verdicts.set_root(_ROOT)
    return list(verdicts.all_of(_ROOT, str(tmp_path_factory.mktemp("run"))))


def test_every_snippet_runs_or_resolves(found):
    failed = [f"{one.snippet.where}: {one.snippet.first}\n{one.error}"
              for one in found if one.error]
    assert not failed, "\n".join(failed)


def test_snippets_of_every_kind_are_found(found):
    done = {}
    for one in found:
        done[one.done] = done.get(one.done, 0) + 1
    assert done["executed"] >= 30 and done["resolved"] >= 60, done
    assert done["parsed"] >= 10 and done["looked up"] >= 20, done
    where = {one.snippet.file for one in found if one.done == "executed"}
    walked = {one.snippet.file for one in found if one.done == "written"}
    assert len(walked) >= 3 and walked <= where, walked
    assert {"README.md", "telemetry/README.md",
            "python_shim/stratalloc/__init__.py",
            "python_shim/compat/memlord.md"} <= where


def test_every_reason_of_the_manifest_is_in_use(found):
    used = {one.done for one in found}
    assert set(manifest.LEFT.values()) | set(manifest.NOT_RUN.values()) <= used


def test_programs_of_examples_are_named_by_their_tests():
    for folder, test in manifest.RUN_BY.items():
        with open(os.path.join(_ROOT, test), encoding="utf-8") as file:
            text = file.read()
        names = [name for name in os.listdir(os.path.join(_ROOT, folder))
                 if name.endswith(".py")]
        assert os.path.basename(folder) in text or any(
            name in text for name in names), (folder, test)


@pytest.mark.parametrize("text", [
    "stratalloc.nothing()", "stratalloc.compat.nothing()", "nothing_of(1)",
    "stratalloc.scopes.scope()",
    "stratalloc.holders(by_site=True)", "limit()[0].x + nothing(2)",
    "explain(1, 2, 3, 4, 5, 6)", 'stratalloc.holders(by="site").nothing()'])
def test_span_of_what_is_not_there_is_wrong(text):
    if "+" in text:
        assert spans.check(text) is None, "no call"
        return
    with pytest.raises(spans.Wrong):
        spans.check(text)


@pytest.mark.parametrize("line", [
    "stratalloc nothing", "stratalloc run --nothing x.py",
    "stratalloc run --metrics ::1:9400 x.py", "stratalloc peak r --nothing",
    "stratalloc run --mode fast x.py", "./dev nothing", "unknown tool",
    "bazel test //allocator:no_such_test", "bazel test //nowhere/...",
    "python -m tests.nothing", "python nothing.py",
    "pytest --stratalloc-nothing", "pip install 'stratalloc[nothing]'"])
def test_line_of_what_is_not_there_is_wrong(line):
    with pytest.raises(spans.Wrong):
        commands.check(line, _ROOT, "")


@pytest.mark.parametrize("text, said", [
    ("env: [{name: STRATALLOC_CONF, value: 'disk_budget:0'}]", ""),
    ("env: [{name: STRATALLOC_CONF, value: 'disk:0'}]", "ValueError"),
    ("env: [", "ParserError"), ("limits: {}", "KeyError")])
def test_settings_of_a_container_are_checked(text, said):
    assert verdicts._of_yaml(text).partition(":")[0] == said


_PRINTED = "first 1.5 MiB\nrows 3\n   total   20 MiB  ██▏\nrows 3\nlast\n"


@pytest.mark.parametrize("shown", [
    "first 2 GiB\nrows 4\ntotal 7 B\nrows 3\nlast", "[…]\nrows 3\n[…]",
    "[…]\nlast", "first 1 B\n[…]\nrows 9\nlast", "fi[…]#\n[…]", "[…]", ""])
def test_output_that_differs_in_values_alone_is_as_shown(shown):
    assert walks.missing(shown, _PRINTED) == ""


@pytest.mark.parametrize("shown, said", [
    ("first 1 B\nlast", "not printed together: first # / last"),
    ("first 1 B\nrows 3", "not on the page: total #"),
    ("rows 3\n[…]", "not printed together: rows #"),
    ("[…]\nlast\nrows 3", "not printed together: last / rows #"),
    ("[…]\nrows 3", "not printed together: rows #"),
    ("[…]\nfirst rows\n[…]", "not printed together: first rows")])
def test_output_that_differs_in_words_names_the_line(shown, said):
    assert walks.missing(shown, _PRINTED) == said


def test_transcript_joins_lines_and_keeps_what_each_prints():
    assert walks.transcript("$ a \\\n    b\nout\n$ c\n$ d\nx\ny\n") == [
        ("a b", "out\n"), ("c", ""), ("d", "x\ny\n")]


def _walk(tmp_path, text):
    page = "python_shim/docs/page.md"
    walk, done = walks.Walk(_ROOT, page, str(tmp_path)), []
    for kind, block in text:
        snippet = extract.Snippet(page, 1, kind, block)
        if kind == "python":
            assert walk.write(snippet)
        else:
            done += [error.partition(":")[0]
                     for _, error in walk.commands(snippet)]
    return done, list(walk.unused)


def test_walk_runs_its_programs_and_compares_their_output(tmp_path):
    program = "# said.py\nimport sys\nprint('said', *sys.argv[1:])\n"
    assert _walk(tmp_path, [
        ("python", program), ("python", "# unused.py\n"),
        ("console", "$ python said.py\nsaid\n$ python said.py twice\nsaid\n"
         "$ python -c 'raise SystemExit(1)'\n"
         "$ python -c 'raise ValueError(3)'\n[…]\nValueError: 4\n"),
    ]) == (["", "not printed together", "exit code 1", ""],
           ["unused.py"])
