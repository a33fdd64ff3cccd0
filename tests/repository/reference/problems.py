# SPDX-License-Identifier: Apache-2.0
"""Problems of the API reference: what its reader would miss, or follow in vain.

Each is a line "NAME: what is wrong". of_modules() looks at what pdoc knows,
of_pages() at what it has written.
"""

from __future__ import annotations

import builtins
import html.parser
import importlib.metadata
import importlib.util
import inspect
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping

import pdoc.doc

# "stratalloc.NAME", where no path, address or distribution is meant.
_MENTIONED = re.compile(r"(?<![\w./@-])stratalloc((?:\.[A-Za-z]\w*)+)")
# "NAME()", which says that NAME can be called.
_CALLED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")
_EXAMPLE = re.compile(r"^    .*$", re.MULTILINE)
_ATTRIBUTES = re.compile(r"^Attributes:\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^  (\w+):", re.MULTILINE)


def verbs() -> list[str]:
    """The verbs of the command line, in the order of its help."""
    from stratalloc.cli import command_line

    return list(command_line._parser()[1])


def of_modules(pages: Mapping[str, pdoc.doc.Module]) -> list[str]:
    """A name without a docstring, a field that its class does not explain or
    that has no type, a signature that says nothing, a name that is not there."""
    found: list[str] = []
    known = _names(pages)
    for page in pages.values():
        for one in (page, *_members(page)):
            found += _of_one(one, known)
    return found


def of_pages(directory: pathlib.Path) -> list[str]:
    """A link to a page or a place of a page that is not there; an object shown
    by its address."""
    pages = {file.resolve(): _Page(file) for file in directory.rglob("*.html")}
    found = []
    for file, page in pages.items():
        name = file.relative_to(directory.resolve())
        if re.search(r"(?:object|function \S+) at 0x", page.text):
            found.append(f"{name}: an object is shown by its address")
        for link in page.links:
            path, _, place = link.partition("#")
            if ":" in path:
                continue
            there = pages.get((file.parent / path).resolve() if path else file)
            if there is None or place and place not in there.places:
                found.append(f"{name}: broken link: {link}")
    return found


def _members(page: pdoc.doc.Namespace) -> Iterator[pdoc.doc.Doc]:
    """Public names of a page that are ours, and those of its classes."""
    for name, one in page.members.items():
        if name.startswith("_") or not one.taken_from[0].startswith("stratalloc"):
            continue
        yield one
        if isinstance(one, pdoc.doc.Class):
            yield from _members(one)


def _of_one(one: pdoc.doc.Doc, known: set[str]) -> list[str]:
    found = []
    if isinstance(one, pdoc.doc.Variable):
        if not one.annotation_str:
            found.append("no type")
    elif not one.docstring.strip():
        found.append("no docstring")
    if isinstance(one, pdoc.doc.Function) and not _says_something(one):
        found.append(f"empty signature: {one.signature}")
    if isinstance(one, pdoc.doc.Class):
        found += _of_fields(one)
    found += _of_text(one, known)
    return [f"{one.fullname}: {what}" for what in found]


def _says_something(function: pdoc.doc.Function) -> bool:
    """Whether each parameter and the result has a type."""
    signature = function.signature
    return signature.return_annotation is not inspect.Signature.empty and all(
        one.annotation is not inspect.Parameter.empty
        for one in signature.parameters.values()
        if one.name not in ("self", "cls"))


def _of_fields(cls: pdoc.doc.Class) -> list[str]:
    """Fields and "Attributes:" of the class, which have to be the same."""
    block = _ATTRIBUTES.search(cls.docstring)
    explained = set(_ENTRY.findall(block.group(1))) if block else set()
    fields = {name for name, one in cls.members.items()
              if isinstance(one, pdoc.doc.Variable)
              and not name.startswith("_")
              and one.taken_from[0].startswith("stratalloc")}
    missing = {name for name in fields - explained
               if not cls.members[name].docstring}
    return [*(f"field without a line in Attributes: {name}"
              for name in sorted(missing)),
            *(f"no field is called as in Attributes: {name}"
              for name in sorted(explained - set(cls.members)))]


def _names(pages: Mapping[str, pdoc.doc.Module]) -> set[str]:
    """What a docstring may name: pages, what is on them, and builtins."""
    return {*dir(builtins), *pages,
            *(one.name for page in pages.values() for one in _members(page))}


def _of_text(one: pdoc.doc.Doc, known: set[str]) -> list[str]:
    found = []
    for name in sorted(set(_MENTIONED.findall(one.docstring))):
        if f"stratalloc{name}" not in known and not _exists(
                "stratalloc", name[1:].split(".")):
            found.append(f"stratalloc{name} is not there")
    prose = _EXAMPLE.sub("", one.docstring)
    for name in sorted(set(_CALLED.findall(prose)) - known):
        found.append(f"{name}() is not there")
    return found


def _exists(module: str, names: list[str]) -> bool:
    """Whether a module has this attribute, module or group of entry points.
    No module is imported beside those that have pages."""
    if f"{module}.{names[0]}" in importlib.metadata.entry_points().groups:
        return True
    value: object = sys.modules[module]
    for at, name in enumerate(names):
        below = ".".join([module, *names[:at + 1]])
        if not hasattr(value, name):
            return importlib.util.find_spec(below) is not None
        value = getattr(value, name)
    return True


class _Page(html.parser.HTMLParser):
    """What a page links to, the places in it, and its text."""

    def __init__(self, file: pathlib.Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.text = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str,
                        attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if values.get("id"):
            self.places.add(str(values["id"]))

    def handle_data(self, data: str) -> None:
        self.text += data
