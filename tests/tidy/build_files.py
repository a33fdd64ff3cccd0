# SPDX-License-Identifier: Apache-2.0
"""Which files the BUILD files name, without asking Bazel.

A test cannot ask the Bazel server that runs it. BUILD files are valid Python:
each is executed with a real glob() and a stand-in for every rule that writes
down the strings it is given; loops and string arithmetic work by themselves.
"""

import re

from tests.tidy.tree import Tree

# Repositories that live in this tree.
_LOCAL_REPOSITORIES = {"rules_cc": "third_party/rules_cc"}

_LOAD = re.compile(r'\bload\(\s*"([^"]+)"')


class _Anything:
    """A rule, a macro or a loaded constant: takes all, is empty."""

    def __init__(self, strings: set[str]):
        self._strings = strings

    def _note(self, value) -> None:
        if isinstance(value, str):
            self._strings.add(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._note(key)
                self._note(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._note(item)

    def __call__(self, *args, **kwargs):
        self._note(args)
        self._note(kwargs)
        return self

    def __getattr__(self, name):
        return self

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return iter(())

    def __add__(self, other):
        return other

    __radd__ = __or__ = __ror__ = __mod__ = __rmod__ = __add__

    def __str__(self):
        return ""


class _Globals(dict):
    """Every name that Python does not know is a rule."""

    def __init__(self, strings: set[str]):
        super().__init__()
        self._strings = strings

    def __missing__(self, name):
        if name in _BUILTINS:
            return _BUILTINS[name]
        return _Anything(self._strings)


# What a BUILD file may use of the language; `__builtins__` empty otherwise.
_BUILTINS = {
    "dict": dict, "enumerate": enumerate, "len": len, "list": list,
    "range": range, "reversed": reversed, "sorted": sorted, "str": str,
    "tuple": tuple, "zip": zip, "True": True, "False": False, "None": None,
}


def _pattern(glob: str) -> re.Pattern:
    """Bazel's glob: `*` within a folder, `**` any number of folders."""
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*)", glob):
        parts.append({
            "**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*",
        }.get(part, re.escape(part)))
    return re.compile("".join(parts))


def _package_files(tree: Tree, package: str) -> list[str]:
    """Paths inside `package`, without those of packages below it."""
    prefix = package + "/" if package else ""
    below = [
        path.rpartition("/")[0] + "/"
        for path in tree.paths()
        if path.rpartition("/")[2] == "BUILD.bazel"
        and path.startswith(prefix)
        and path != prefix + "BUILD.bazel"
    ]
    return [
        path[len(prefix):]
        for path in tree.paths()
        if path.startswith(prefix) and not path.startswith(tuple(below))
    ]


def _strings_of(tree: Tree, package: str, text: str) -> set[str]:
    strings: set[str] = set()
    inside = _package_files(tree, package)

    def glob(include, exclude=(), **_):
        wanted = [_pattern(pattern) for pattern in include]
        unwanted = [_pattern(pattern) for pattern in exclude]
        return [
            path
            for path in inside
            if any(pattern.fullmatch(path) for pattern in wanted)
            and not any(pattern.fullmatch(path) for pattern in unwanted)
        ]

    scope = _Globals(strings)
    scope["__builtins__"] = {}
    scope["glob"] = glob
    exec(compile(text, package + "/BUILD.bazel", "exec"), scope)
    return strings


def _path_of(label: str, package: str) -> str:
    """A label or a file name as a path from the root."""
    match = re.match(r"@(\w+)//(.*)", label)
    if match:
        base = _LOCAL_REPOSITORIES.get(match.group(1))
        if base is None and match.group(1) != "stratalloc":
            return ""
        label = "//" + (base + "/" if base else "") + match.group(2)
    if label.startswith("//"):
        return label[2:].replace(":", "/", 1).lstrip("/")
    label = label.removeprefix(":")
    return f"{package}/{label}" if package else label


def named_files(tree: Tree) -> set[str]:
    """Paths of all files that a BUILD file names or a load() reads."""
    named: set[str] = set()
    for file in tree.files(("BUILD.bazel", ".bzl", "WORKSPACE")):
        for label in _LOAD.findall(file.text):
            named.add(_path_of(label, file.folder))
        if file.name != "BUILD.bazel":
            continue
        for string in _strings_of(tree, file.folder, file.text):
            named.add(_path_of(string, file.folder))
    # Labels that macros of bazel/*.bzl hand to every test.
    for file in tree.files((".bzl",)):
        for label in re.findall(r'"(//[\w/.-]+:[\w./-]+)"', file.text):
            named.add(_path_of(label, file.folder))
    return named
