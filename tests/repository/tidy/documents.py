# SPDX-License-Identifier: Apache-2.0
"""Rules about documents: what they name and cite is there, and complete."""

import os
import re
from collections.abc import Iterator

from tests.repository.tidy.rooms import is_of_a_room
from tests.repository.tidy.tree import CPP, NOT_TEXT, SOURCES, Tree

# "rule 3", "rules 1, 2 and 5", "rules 1–5": the numbers, over a folded line of
# a comment, too.
_FOLD = r"[ \t]*(?:\n[ \t]*(?://+|#+|\*|>)?[ \t]*)?"
_RULE_NUMBERS = re.compile(
    rf"\brules?\b{_FOLD}(\d+(?:{_FOLD}(?:,|and\b|or\b|to\b|-|–|,{_FOLD}and\b)"
    rf"{_FOLD}\d+)*)\b",
    re.IGNORECASE,
)
# Headings of DESIGN.md that are looked up.
_RULES_OF_DESIGN = "Residency rules"
_LOCKS_OF_DESIGN = "Lock order"
_LOCK_RANKS = "allocator/base/lock_ranks.h"

# What a README says is ours: a file, or a name in the manner of C++ or of a
# member, perhaps with its class and (). Words of one hump may be English.
_NAMED_FILE = re.compile(r"(?:[\w.]+/)*\w+\.(?:cc|h|cu|py|bzl)")
_NAME = re.compile(
    r"(?:\w+::)*([A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+|[a-z]\w*_)(?:\(\))?"
    r"|(?:\w+::)+(\w+)(?:\(\))?"
)
# A link within the repository, without the place in the page.
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)")
# What a comment in C++ says is: a source of ours (headers may be others'), a
# function under a lock, a member of one of our classes.
_SOURCE_IN_COMMENT = re.compile(r"(?<![\w/.<-])(?:\w+/)*\w+\.cc\b")
_LOCKED_IN_COMMENT = re.compile(r"\b\w+Locked\b")
_MEMBER_IN_COMMENT = re.compile(r"\b([A-Z]\w+)::(\w+)\b")
_OUR_CLASS = re.compile(
    r"\b(?:class|struct)\s+(?:\w+\([^)]*\)\s+)?([A-Z]\w+)"
)


def _design_lines(tree: Tree, heading: str) -> Iterator[tuple[int, str]]:
    """What stands under one heading of DESIGN.md, with line numbers."""
    inside = False
    for file in tree.files(("DESIGN.md",)):
        for number, line in enumerate(file.text.splitlines(), 1):
            if line.startswith("#"):
                inside = line.lstrip("#").strip() == heading
            elif inside:
                yield number, line


def unknown_rules(tree: Tree) -> Iterator[str]:
    """A rule that a comment cites by its number can be looked up."""
    known = {
        int(match.group(1))
        for _, line in _design_lines(tree, _RULES_OF_DESIGN)
        if (match := re.match(r"(\d+)\. ", line))
    }
    for file in tree.files(SOURCES + (".md", ".bazel", "dev")):
        for match in _RULE_NUMBERS.finditer(file.text):
            line = file.text.count("\n", 0, match.start()) + 1
            for number in re.findall(r"\d+", match.group(1)):
                if int(number) not in known:
                    yield (
                        f"{file.path}:{line}: rule {number}; DESIGN.md has no "
                        f"such number under {_RULES_OF_DESIGN!r}"
                    )


def _words(tree: Tree) -> set[str]:
    """Every identifier of the code; comments of C++ are none."""
    words = set()
    for file in tree.files(CPP + (".inc",)):
        words.update(re.findall(r"\w+", file.code))
    for file in tree.files((".py", ".bzl", ".bazel", ".sh", ".lds", "dev")):
        words.update(re.findall(r"\w+", file.text))
    return words


def _names_in_readme(text: str) -> Iterator[tuple[int, str]]:
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            for name in re.findall(r"`([^`]+)`", line):
                yield number, name


def unknown_names(tree: Tree) -> Iterator[str]:
    """What a README or a comment names by its name is there to be found."""
    words = _words(tree)
    paths = tree.paths()

    def is_file(name: str) -> bool:
        return any(path == name or path.endswith("/" + name) for path in paths)

    for file in tree.files((".md",)):
        if not is_of_a_room(file.path):
            continue
        for number, name in _names_in_readme(file.text):
            match = _NAME.fullmatch(name)
            if (not is_file(name) if _NAMED_FILE.fullmatch(name) else
                    match and (match[1] or match[2]) not in words):
                yield (
                    f"{file.path}:{number}: `{name}` is nowhere; it was "
                    "renamed, perhaps, or is gone"
                )
    classes = {
        name
        for file in tree.files(CPP)
        for name in _OUR_CLASS.findall(file.code)
    }
    for file in tree.files(CPP):
        if not is_of_a_room(file.path):
            continue
        for comment in re.finditer(r"//[^\n]*", file.text):
            text = comment.group()
            gone = [name for name in _SOURCE_IN_COMMENT.findall(text)
                    if not is_file(name)]
            gone += [name for name in _LOCKED_IN_COMMENT.findall(text)
                     if name not in words]
            gone += [f"{owner}::{name}"
                     for owner, name in _MEMBER_IN_COMMENT.findall(text)
                     if owner in classes and name not in words]
            line = file.text.count("\n", 0, comment.start()) + 1
            for name in dict.fromkeys(gone):
                yield (
                    f"{file.path}:{line}: {name} is nowhere; it was renamed, "
                    "perhaps, or is gone"
                )


def broken_links(tree: Tree) -> Iterator[str]:
    """What a page links to in the repository is there."""
    paths = tree.paths()
    for file in tree.files((".md",)):
        code = False
        for number, line in enumerate(file.text.splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            for target in [] if code else _LINK.findall(line):
                path = os.path.normpath(os.path.join(file.folder, target))
                if not (target.endswith(NOT_TEXT) or path in paths or any(
                        one.startswith(path + "/") for one in paths)):
                    yield (f"{file.path}:{number}: {target} is not there; "
                           "mend the link")


def lock_order(tree: Tree) -> Iterator[str]:
    """DESIGN.md has the ranks of locks, each once, in their order."""
    ranks = [
        match.group(1)
        for file in tree.files((_LOCK_RANKS,))
        for match in re.finditer(r"\b(k\w+)\s*=\s*\d+", file.code)
    ]
    rows = [
        (number, match.group(1))
        for number, line in _design_lines(tree, _LOCKS_OF_DESIGN)
        if (match := re.match(r"\|\s*(k[A-Z]\w*)\s*\|", line))
    ]
    for number, row in rows:
        if row not in ranks:
            yield (
                f"DESIGN.md:{number}: {row}; {_LOCK_RANKS} has no such rank"
            )
    for rank in ranks:
        if rank not in (row for _, row in rows):
            yield (
                f"DESIGN.md: no row for {rank} under {_LOCKS_OF_DESIGN!r}; say "
                "who takes it and what happens under it"
            )
    both = [row for _, row in rows if row in ranks]
    if sorted(both) == sorted(ranks) and both != ranks:
        yield (
            f"DESIGN.md: the rows under {_LOCKS_OF_DESIGN!r} are not in the "
            f"order of {_LOCK_RANKS}"
        )
    if len(set(both)) < len(both):
        yield f"DESIGN.md: a rank twice under {_LOCKS_OF_DESIGN!r}"
