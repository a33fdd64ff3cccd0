# SPDX-License-Identifier: Apache-2.0
"""The rule about functions: one is read in one go.

A function's lines run from the first of its signature to its closing brace (of
Python: to its last statement, without the docstring). What a macro makes of
braces is not looked into; none of ours opens or closes one.
"""

import ast
import re
from collections.abc import Iterator

from tests.repository.tidy.tree import Tree

LINES = 60
_ROOMS = ("accounting", "allocator", "python_shim", "tiering")
_CHARACTER = re.compile(r"'(?:\\.|[^'\\\n])'")
# A block that is no function, though functions may stand in it.
_AROUND = re.compile(
    r"\s*(template\s*<[^{};]*?>\s*)?(inline\s+|typedef\s+)?"
    r"((namespace|class|struct|union|enum)\b|extern\b[^()]*$)")
# A function that returns `struct stat` ends in its parameters.
_PARAMETERS = re.compile(
    r"\)[\s&]*((const|noexcept|override|final)\b[\s&]*)*$")
# Of a class: no part of the method behind it.
_ACCESS = re.compile(r"\s*(public|protected|private)\s*:(?!:)")


def _is_product(path: str) -> bool:
    room, _, rest = path.partition("/")
    return (room in _ROOMS and "test" not in rest.rpartition("/")[2]
            and "/tests/" not in path and "/testing/" not in path)


def _cpp(code: str) -> Iterator[tuple[int, int]]:
    """First and last line of each function, from 1; of nested ones the outer.

    `code` has no comments and strings any more.
    """
    code = _CHARACTER.sub("   ", code)
    head = at = 0  # where the statement under way begins
    while at < len(code):
        if code[at] in ";}" or code[at] == "#":
            at = head = code.index("\n", at) if code[at] == "#" else at + 1
        elif code[at] != "{":
            at += 1
        elif "(" not in code[head:at] or (
                _AROUND.match(code, head, at)
                and not _PARAMETERS.search(code[head:at])):
            at = head = at + 1
        else:
            end = _closing(code, at)
            # `: member_{value}, other_({value})` of a constructor, or a
            # parameter's `= {}`: the body comes later.
            said = code[head:at]
            if (said.count("(") > said.count(")")
                    or re.compile(r"\s*[,{]").match(code, end)):
                at = end
                continue
            while access := _ACCESS.match(code, head, at):
                head = access.end()
            begin = head + len(code[head:at]) - len(code[head:at].lstrip())
            yield code.count("\n", 0, begin) + 1, code.count("\n", 0, end) + 1
            at = head = end


def _closing(code: str, opening: int) -> int:
    """Behind the brace that closes the one at `opening`."""
    depth = 0
    for brace in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return opening + brace.end()
    return len(code)


def _python(text: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            first, last = node.lineno, node.end_lineno or node.lineno
            if ast.get_docstring(node, clean=False) is not None:
                said = body[0]
                first += (said.end_lineno or 0) - said.lineno + 1
            yield first, last


def long_functions(tree: Tree) -> Iterator[str]:
    """A function is read in one go."""
    for file in tree.files((".h", ".cc", ".cu", ".py")):
        if not _is_product(file.path):
            continue
        python = file.path.endswith(".py")
        found = (_python(file.text) if python
                 else _cpp(file.code))
        for first, last in found:
            lines = last - first + 1
            if lines > LINES:
                yield (f"{file.path}:{first}: a function of {lines} lines, "
                       f"{LINES} are the most; name its steps")
