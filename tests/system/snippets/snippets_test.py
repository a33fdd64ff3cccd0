# SPDX-License-Identifier: Apache-2.0
"""Every snippet of the repository's text runs, or is what it says it is."""

import os
import re

import pytest

from tests.system.snippets import commands, manifest, spans, verdicts

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


def test_results_have_what_the_readme_promises():
    from stratalloc._reports import explanation as _explanation
    from stratalloc._reports import fragmentation as _fragmentation
    from stratalloc._reports import diff as _diff
    from stratalloc._reports import holders as _holders
    from stratalloc._reports import leaks as _leaks

    returned = {"holders": _holders.Holders, "peak": _holders.Holders,
                "diff": _diff.Growth, "leaks": _leaks.Leaks,
                "fragmentation": _fragmentation.Fragmentation,
                "explain": _explanation.Explanation}
    with open(os.path.join(_ROOT, "README.md"), encoding="utf-8") as file:
        sentence, = re.findall(r"What (`holders[^.]*?)\.\s", file.read(), re.S)
    subject, _, promise = sentence.partition("return is a mapping")
    assert set(re.findall(r"`(\w+)\(\)`", subject)) == set(returned)
    for kind in returned.values():
        for method in re.findall(r"`(\w+)\(\)`", promise):
            assert callable(getattr(kind, method)), (kind, method)


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
