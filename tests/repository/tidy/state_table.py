# SPDX-License-Identifier: Apache-2.0
"""Rules about allocator/RESIDENCY.md: its states and the tests of its cells.

A table there begins with a column "state". Every other column is an event, and
names in its header the suite of its tests, `LookCells`. The test of a cell
begins with the state: `LookCells.HostPageIsNotUsed`.
"""

import dataclasses
import re
from collections.abc import Iterator

from tests.repository.tidy.tree import Tree

_HANDLE_TABLE = "allocator/memory/handle_table.h"
_STATE_TABLE = "allocator/RESIDENCY.md"
_CANNOT_HAPPEN = "–"

_STATE = re.compile(r"\bk[A-Z]\w*")
_SUITE = re.compile(r"`(\w+Cells)`")
_NAMED_TEST = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
_TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)


@dataclasses.dataclass
class _Table:
    number: int  # of its first line
    suites: list[str]  # of its columns; "" of the first
    rows: list[tuple[int, list[str]]]  # with line numbers


def _states(tree: Tree) -> list[str]:
    for file in tree.files((_HANDLE_TABLE,)):
        body = re.search(r"enum class HandleState\b[^{]*\{([^}]*)\}", file.code)
        return re.findall(r"\b(k\w+)\s*=\s*\d+", body[1]) if body else []
    return []


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _tables(tree: Tree) -> list[_Table]:
    tables: list[_Table] = []
    inside, is_ours = False, False
    for file in tree.files((_STATE_TABLE,)):
        for number, line in enumerate(file.text.splitlines(), 1):
            if not line.startswith("|"):
                inside = False
            elif not inside:
                inside, is_ours = True, _cells(line)[0] == "state"
                if not is_ours:
                    continue
                suites = [(_SUITE.search(cell) or ["", ""])[1]
                          for cell in _cells(line)]
                tables.append(_Table(number, suites, []))
            elif is_ours and not line.startswith("|--"):
                tables[-1].rows.append((number, _cells(line)))
    return tables


def _tests(tree: Tree) -> set[tuple[str, str]]:
    return {
        match.groups()
        for file in tree.files((".cc",)) if file.is_test
        for match in _TEST.finditer(file.code)
    }


def handle_states(tree: Tree) -> Iterator[str]:
    """Each table of a page's residency has a row for every state."""
    states = _states(tree)
    tables = _tables(tree)
    for table in tables:
        named = []
        for number, row in table.rows:
            named += _STATE.findall(row[0])
            for name in _STATE.findall(" ".join(row)):
                if name not in states:
                    yield (
                        f"{_STATE_TABLE}:{number}: {name}; {_HANDLE_TABLE} has "
                        "no such state"
                    )
        for state in states:
            if named.count(state) != 1:
                yield (
                    f"{_STATE_TABLE}:{table.number}: {named.count(state)} rows "
                    f"for {state}; say once what each event does in it"
                )
    if states and not tables:
        yield f"{_STATE_TABLE}: no table has a row for {states[0]}"


def state_tests(tree: Tree) -> Iterator[str]:
    """Each cell of these tables that can happen has a test, no other has."""
    tests = _tests(tree)
    tested: set[tuple[str, str]] = set()
    for table in _tables(tree):
        for column, suite in enumerate(table.suites[1:], 1):
            if not suite:
                yield (f"{_STATE_TABLE}:{table.number}: column {column + 1} "
                       "names no suite; its tests are `…Cells`")
        for number, row in table.rows:
            for suite, cell in zip(table.suites[1:], row[1:]):
                for state in _STATE.findall(row[0]):
                    named = {test for test in tests if test[0] == suite and
                             test[1].startswith(f"{state[1:]}Page")}
                    tested |= named
                    if suite and not named and cell != _CANNOT_HAPPEN:
                        yield (
                            f"{_STATE_TABLE}:{number}: no test "
                            f"{suite}.{state[1:]}Page…; write the cell's"
                        )
                    if named and cell == _CANNOT_HAPPEN:
                        yield (
                            f"{_STATE_TABLE}:{number}: {suite} has a test of "
                            f"{state}, and the cell says it cannot happen"
                        )
    for suite, name in sorted(tests - tested):
        if suite in {one for table in _tables(tree) for one in table.suites}:
            yield (f"{_STATE_TABLE}: {suite}.{name} is the test of no cell; "
                   "begin its name with the state")
    for file in tree.files((_STATE_TABLE,)):
        for named in _NAMED_TEST.finditer(file.text):
            if named.groups() not in tests:
                line = file.text.count("\n", 0, named.start()) + 1
                yield f"{_STATE_TABLE}:{line}: {named[0]} is no test"
