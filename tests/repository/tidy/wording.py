# SPDX-License-Identifier: Apache-2.0
"""Counts words outside the field's English per file, against a list that falls.

    python3 -m tests.repository.tidy.wording [--update] [PATH...]

Prints one line per file: its count, what `wording.json` allows, the words.
`--update` lowers what is allowed to what is there, drops files that are gone,
and moves the entry of a file that was renamed. It raises no count and adds no
file: new text has none of these words (CONTRIBUTING.md says which to write).
"""

import collections
import json
import os
import re
import sys
from collections.abc import Iterator

from tests.repository.tidy.tree import File, Tree

LIST = "tests/repository/tidy/wording.json"
_ENDINGS = (".h", ".cc", ".cu", ".py", ".sh", ".bzl", ".bazel", ".md", ".inc",
            "dev")
# Threads, drivers and callers have names; memory is evicted, freed, released.
_WORDS = re.compile(
    r"\b(who|whom|whoever|nobody|somebody|anybody|everybody|tells?|told|"
    r"hears?|heard|away)\b", re.IGNORECASE)
# A file's first line is a noun phrase or a verb.
_OPENING = re.compile(
    r'\A(?:#!.*\n)?(?:(?://|#) SPDX.*\n)?(?:(?://|#)\n)?(?://|#|""")? ?'
    r"(?:[\w.]+: )?(what|who)\b", re.IGNORECASE)
# They hold the words themselves.
_EXEMPT = ("tests/repository/tidy/wording.py", "tests/repository/tidy/wording_test.py")


def words_of(file: File) -> collections.Counter:
    """How often a file has each word; an opening counts as "What ..."."""
    if file.path in _EXEMPT or not file.path.endswith(_ENDINGS):
        return collections.Counter()
    found = collections.Counter(
        match.group().lower() for match in _WORDS.finditer(file.text))
    opening = _OPENING.match(file.text)
    if opening:
        found[opening.group(1).capitalize() + " ..."] += 1
    return found


def counts(tree: Tree) -> dict[str, collections.Counter]:
    """The words of each file that has any, by path."""
    found = {file.path: words_of(file) for file in tree.files()
             if not file.path.startswith("third_party/")}
    return {path: words for path, words in found.items() if words}


def allowed(tree: Tree) -> dict[str, int]:
    """The counts that the tree's list allows, by path."""
    for file in tree.files((LIST,)):
        return json.loads(file.text)
    return {}


def wording(tree: Tree) -> Iterator[str]:
    """No file has more of these words than the list allows, none fewer."""
    limits, found = allowed(tree), counts(tree)
    for path in sorted(limits.keys() | found.keys()):
        words, limit = found.get(path, {}), limits.get(path, 0)
        total = sum(words.values())
        if total > limit:
            yield (
                f"{path}: {total} words outside plain technical English, "
                f"{limit} allowed ({_named(words)}); name the actor and the "
                "field's word instead"
            )
        elif total < limit:
            yield (
                f"{path}: {LIST} allows {limit} words and {total} are left; "
                "run python3 -m tests.repository.tidy.wording --update"
            )


def updated(limits: dict[str, int], found: dict[str, int]) -> dict[str, int]:
    """The list lowered to what is there; entries of renamed files move."""
    gone = {path: limit for path, limit in limits.items() if path not in found}
    result = {}
    for path, total in found.items():
        limit = limits.get(path)
        if limit is None:
            renamed = [old for old in gone
                       if os.path.basename(old) == os.path.basename(path)
                       and gone[old] >= total]
            if not renamed:
                continue
            limit = gone.pop(renamed[0])
        result[path] = min(limit, total)
    return dict(sorted(result.items()))


def _named(words) -> str:
    return ", ".join(f"{word} {times}" for word, times in words.most_common())


def main(arguments: list[str]) -> int:
    tree = Tree(".")
    limits, found = allowed(tree), counts(tree)
    totals = {path: sum(words.values()) for path, words in found.items()}
    if "--update" in arguments:
        new = updated(limits, totals) if limits else dict(sorted(totals.items()))
        with open(LIST, "w", encoding="utf-8") as stream:
            json.dump(new, stream, indent=1)
            stream.write("\n")
        limits = new
    chosen = [each for each in arguments if not each.startswith("-")]
    for path in sorted(found):
        if not chosen or path.startswith(tuple(chosen)):
            print(f"{totals[path]:4} of {limits.get(path, 0):4}  {path}: "
                  f"{_named(found[path])}")
    print(f"{sum(totals.values())} words in {len(found)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
