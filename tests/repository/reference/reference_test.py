# SPDX-License-Identifier: Apache-2.0
"""Tests of the API reference: entries of public names, and planted problems."""

import importlib.util
import inspect
import re
import sys

import pdoc.doc
import pytest
import stratalloc
from stratalloc.cli import command_line

from tests.repository.reference import pages, problems


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(modules, directory, what pdoc warned of)"""
    directory = tmp_path_factory.mktemp("reference")
    found = pages.modules()
    return found, directory, pages.write(directory, found)


@pytest.fixture(scope="module")
def sections(built):
    """Public name -> its section of the page, without tags."""
    text = (built[1] / "stratalloc.html").read_text(encoding="utf-8")
    parts = re.split(r'<section id="(\w+)">', text)[1:]
    return {name: re.sub(r"<[^>]*>", "", part).strip()
            for name, part in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("name", stratalloc.__all__)
def test_public_name_has_an_entry_with_its_signature(sections, name):
    value = getattr(stratalloc, name)
    entry = sections[name]
    if inspect.isclass(value):
        assert re.search(rf"class\s+{name}\b", entry)
    else:
        parameters = inspect.signature(value).parameters
        heading = entry.partition("\n\n")[0]
        assert re.search(rf"def\s+{name}\(", heading)
        assert [one for one in parameters if one not in heading] == []
    documentation = inspect.cleandoc(value.__doc__).splitlines()[0]
    assert documentation.split()[0] in entry


def test_public_module_has_a_page(built):
    for name in stratalloc._MODULES:
        assert (built[1] / "stratalloc" / f"{name}.html").exists()


def test_result_class_shows_what_it_inherits(built):
    page = built[0]["stratalloc"].members["Holders"].members
    assert {"rows", "total", "at", "device", "to_pandas", "text"} <= set(page)
    assert page["to_pandas"].docstring.startswith(
        "A pandas.DataFrame with a line for each row.")
    assert page["total"].annotation_str == ": int"


def test_overridden_method_has_its_own_docstring(built):
    page = built[0]["stratalloc"].members["Explanation"].members
    assert page["to_dict"].docstring == 'The attributes, and "fits".'


@pytest.mark.parametrize("verb", problems.verbs())
def test_verb_has_its_help(built, verb):
    help_page = built[0]["stratalloc.commands"].docstring
    section = help_page.split(f"## stratalloc {verb}\n")[1].split("\n## ")[0]
    assert section.split("```text\n")[1].lower().startswith(
        f"usage: stratalloc {verb} ")
    assert len(section.splitlines()) > 5


def test_verb_whose_help_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(command_line, "main", lambda argv: 3)
    with pytest.raises(RuntimeError, match="--help ended with 3"):
        pages.modules()


def test_default_that_equals_an_environment_variable_is_shown(built):
    # Bazel's TEST_WORKSPACE is "stratalloc".
    source = built[0]["stratalloc"].get("Run").get("source")
    assert source.default_value_str == "'stratalloc'"


def test_reference_has_no_problem(built):
    found, directory, warned = built
    assert warned == []
    assert problems.of_modules(found) == []
    assert problems.of_pages(directory) == []


@pytest.fixture
def planted(built, tmp_path, monkeypatch):
    """text -> problems of a module with this text beside the others."""
    def problems_of(text):
        file = tmp_path / "planted.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("stratalloc.planted", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "stratalloc.planted", module)
        spec.loader.exec_module(module)
        return problems.of_modules({
            **built[0], "stratalloc.planted": pdoc.doc.Module(module)})

    return problems_of


@pytest.mark.parametrize("text, problem", [
    ("'''Text.'''\ndef f() -> int: ...",
     "f: no docstring"),
    ("'''Text.'''\ndef f(x) -> int: '''Text.'''",
     "f: empty signature: (x) -> int"),
    ("'''Text.'''\ndef f(x: int): '''Text.'''",
     "f: empty signature: (x: int)"),
    ("'''Text.'''\ndef f() -> int: '''As enabel() does.'''",
     "f: enabel() is not there"),
    ("'''Text of stratalloc.enabel.'''",
     ": stratalloc.enabel is not there"),
    ("'''Text.'''\nclass C:\n  '''Text.'''\n  size: int",
     "C: field without a line in Attributes: size"),
    ("'''Text.'''\nclass C:\n  '''Text.\n\n  Attributes:\n    sise: bytes.\n"
     "  '''",
     "C: no field is called as in Attributes: sise"),
    ("'''Text.'''\nclass C:\n  '''Text.'''\n  size = 0\n  '''Bytes.'''",
     "C.size: no type"),
    ("", ": no docstring"),
])
def test_planted_problem_is_the_one_that_is_found(planted, text, problem):
    name = "stratalloc.planted" + ("" if problem[0] == ":" else ".")
    assert planted(text) == [f"{name}{problem}"]


def test_name_that_exists_is_no_problem(planted):
    assert planted(
        "'''As stratalloc.enable() and stratalloc.compat.memlord do; as\n"
        "enable(), str() and len().\n\n    example()\n'''") == []


@pytest.mark.parametrize("body, problem", [
    ('<a href="#there">x</a>', "broken link: #there"),
    ('<a href="other.html">x</a>', "broken link: other.html"),
    ("<p>=&lt;object object at 0x7f00&gt;</p>",
     "an object is shown by its address")])
def test_planted_problem_of_a_page_is_found(tmp_path, body, problem):
    (tmp_path / "page.html").write_text(body)
    assert problems.of_pages(tmp_path) == [f"page.html: {problem}"]


def test_link_that_leads_somewhere_is_no_problem(tmp_path):
    (tmp_path / "page.html").write_text(
        '<p id="a"></p><a href="#a">x</a><a href="page.html#a">x</a>'
        '<a href="https://pdoc.dev">x</a>')
    assert problems.of_pages(tmp_path) == []


def test_main_with_a_problem_returns_1(tmp_path, monkeypatch, capsys):
    assert pages.main([str(tmp_path / "pages")]) == 0
    assert capsys.readouterr().out.strip() == str(
        tmp_path / "pages" / "index.html")
    monkeypatch.setattr(problems, "of_pages", lambda directory: ["a: b"])
    assert pages.main([str(tmp_path / "pages")]) == 1
    assert capsys.readouterr() == ("", "a: b\n")
