# SPDX-License-Identifier: Apache-2.0
"""Snippets of the repository's text: blocks and code spans of pages, blocks of
docstrings, sentences of --help."""

import ast
import dataclasses
import os
import re
import subprocess
import textwrap

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
_SPAN = re.compile(r"`([^`]+)`")
# Behind an empty line, deeper than the text around it.
_INDENTED = re.compile(r"(?:^|\n\n)((?:    .*(?:\n|$)(?:\n(?=    ))?)+)")
_PRODUCT = ("python_shim/stratalloc", "tests/simulator/cudasim/package/stratalloc_cudasim")


@dataclasses.dataclass(frozen=True)
class Snippet:
    """`kind`: language of a block, "docstring", or "span"."""

    file: str
    line: int
    kind: str
    text: str

    @property
    def where(self):
        return f"{self.file}:{self.line}"

    @property
    def first(self):
        return self.text.strip().split("\n")[0]


def files(root, *suffixes):
    """Paths of the checkout's own files, sorted."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [one for one in folders if not one.startswith((".", "bazel-"))
                      and one not in ("build", "node_modules", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, name), root)
                  for name in names if name.endswith(suffixes)]
    return sorted(found)


def blocks(root):
    """Fenced blocks of every page."""
    for path in files(root, ".md"):
        text = _read(root, path)
        for found in _FENCED.finditer(text):
            yield Snippet(path, _line(text, found.start()) + 1, found[1],
                          found[2])


def spans(root):
    """Code in backticks of every page, on one line."""
    for path in files(root, ".md"):
        text = _FENCED.sub(lambda found: "\n" * found[0].count("\n"),
                           _read(root, path))
        for found in _SPAN.finditer(text):
            yield Snippet(path, _line(text, found.start()), "span",
                          " ".join(found[1].split()))


def docstrings(root, public):
    """Indented blocks in docstrings of public modules, and of what they and
    the names in `public` (name -> module) define for programs."""
    named = {}
    for name, module in public.items():
        named.setdefault(module.replace(".", "/"), set()).add(name)
    for path in files(root, ".py"):
        folder = next((one for one in _PRODUCT if path.startswith(one + "/")),
                      None)
        if folder is None or "/tests/" in path:
            continue
        module = path[len(folder) + 1:].removesuffix(".py")
        is_public = not any(part.startswith("_") and part != "__init__"
                            for part in module.split("/"))
        yield from _of_module(root, path, is_public,
                              named.get(module, set()))


def _of_module(root, path, is_public, names):
    text = _read(root, path)
    tree = ast.parse(text)
    for node in [tree, *ast.iter_child_nodes(tree)]:
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        name = getattr(node, "name", None)
        wanted = is_public if name is None else (
            name in names or is_public and not name.startswith("_"))
        said = ast.get_docstring(node)
        if not wanted or not said:
            continue
        for found in _INDENTED.finditer(said):
            line = node.body[0].lineno + _line(said, found.start(1)) - 1
            yield Snippet(path, line, "docstring", textwrap.dedent(found[1]))


def helps(run):
    """Spans of what --help says: run(words) -> its text."""
    words = re.compile(r"^  (\w+) ", re.M)
    top = run(["--help"])
    # Commands stand indented by four below "positional arguments".
    commands = re.findall(r"^    (\w+)\s", top, re.M) or words.findall(top)
    for command in ["", *dict.fromkeys(commands)]:
        text = run([command, "--help"] if command else ["--help"])
        for found in _SPAN.finditer(text):
            yield Snippet(f"stratalloc {command} --help".replace("  ", " "), 0,
                          "span", " ".join(found[1].split()))


def tracked(root):
    """Files that git knows, or None where this is no checkout."""
    done = subprocess.run(["git", "-C", root, "ls-files"], text=True,
                          capture_output=True, check=False)
    return set(done.stdout.split("\n")) if done.returncode == 0 else None


def _read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def _line(text, at):
    return text.count("\n", 0, at) + 1
