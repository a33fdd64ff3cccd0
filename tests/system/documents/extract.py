# SPDX-License-Identifier: Apache-2.0
"""The blocks of a document's text, and whether it is the text that was meant.
"""

import hashlib
import re
import textwrap

_FENCE = re.compile(r"(\s*)```")
_DIRECTIVE = re.compile(r"(\s*)\.\. code-block::")


def digest(lines):
    """The sha256 of a Block, of the lines as they are printed."""
    text = "".join(line + "\n" for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lines_of(path):
    """The document's lines; OSError, UnicodeDecodeError."""
    with open(path, encoding="utf-8", newline="") as stream:
        return stream.read().split("\n")


def of(block, lines):
    """The lines of `block`; ValueError if they are not those it means."""
    first, last = block.lines
    found = lines[first - 1:last]
    if digest(found) != block.sha256:
        raise ValueError(
            f"lines {first} to {last} are not those of the manifest: their "
            f"sha256 begins with {digest(found)}, not {block.sha256}")
    return found


def program(block, lines):
    """What is run of a block of kind "run": as printed, without the
    indentation that all of it has, and with what is replaced."""
    text = textwrap.dedent("\n".join(of(block, lines))) + "\n"
    for old, new in block.replaced:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is there {text.count(old)} times")
        text = text.replace(old, new)
    return text


def marked(lines, kind):
    """(first, last) of each block that the document's format marks: between
    fences in "markdown", below a directive in "rst", none in "plain"."""
    if kind == "markdown":
        yield from _fenced(lines)
    elif kind == "rst":
        yield from _directed(lines)


def _fenced(lines):
    opened = None
    for number, line in enumerate(lines, 1):
        if not _FENCE.match(line):
            continue
        if opened is None:
            opened = number
        else:
            yield opened + 1, number - 1
            opened = None


def _directed(lines):
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line)
        if match is None:
            continue
        inner = [
            at for at in _below(lines, number, len(match.group(1)))
            if lines[at - 1].strip()]
        if inner:
            yield inner[0], inner[-1]


def _below(lines, number, margin):
    """Numbers of the lines after `number` that are blank or indented more."""
    for at in range(number + 1, len(lines) + 1):
        line = lines[at - 1]
        if line.strip() and len(line) - len(line.lstrip()) <= margin:
            return
        yield at
