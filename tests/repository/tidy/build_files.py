# SPDX-License-Identifier: Apache-2.0
"""What the BUILD files say, without asking Bazel.

A test cannot ask the Bazel server that runs it. BUILD files are valid Python:
each is executed with a real glob() and a stand-in for every rule that writes
down what it is given; loops and string arithmetic work by themselves.
"""

import dataclasses
import re
from collections.abc import Iterator

from tests.repository.tidy.tree import Tree

# Repositories that live in this tree.
_LOCAL_REPOSITORIES = {"rules_cc": "third_party/rules_cc"}

_LOAD = re.compile(r'\bload\(\s*"([^"]+)"')


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a rule or a macro; `file` is the BUILD file's path."""

    file: str
    rule: str
    arguments: dict[str, object]  # those without a name under ""

    @property
    def name(self) -> str:
        return str(self.arguments.get("name", self.rule))


def strings_in(value) -> set[str]:
    """All strings of a list, a tuple or a dictionary, keys too."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        return set().union(*map(strings_in, value))
    return set()


class _Anything:
    """A rule, a macro or a loaded constant: takes all, is empty."""

    def __init__(self, name: str, note):
        self._name = name
        self._note = note

    def __call__(self, *args, **kwargs):
        self._note(self._name, {"": args, **kwargs})
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

    def __init__(self, note):
        super().__init__()
        self._note = note

    def __missing__(self, name):
        if name in _BUILTINS:
            return _BUILTINS[name]
        return _Anything(name, self._note)


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


def _calls_of(tree: Tree, package: str, text: str) -> list[Call]:
    found: list[Call] = []
    file = package + "/BUILD.bazel" if package else "BUILD.bazel"
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

    def note(rule, arguments):
        # The package's call stands before all rules.
        if any(call.rule == "package" and call.arguments.get("default_testonly")
               for call in found):
            arguments = {"testonly": True, **arguments}
        found.append(Call(file, rule, arguments))

    # The rules of bazel/cc.bzl for whole folders.
    def cc_folder(exclude=(), **arguments):
        note("cc_library", {
            "srcs": glob(["*.cc"], ["*_test.cc", "*_benchmark.cc", *exclude]),
            "hdrs": glob(["*.h"], ["*_test.h", *exclude]), **arguments})

    def cc_folder_tests(exclude=(), **arguments):
        for src in glob(["*_test.cc"], exclude):
            note("cc_test", {**arguments, "name": src[:-len(".cc")],
                             "srcs": [src]})

    scope = _Globals(note)
    scope["__builtins__"] = {}
    scope["glob"] = glob
    scope["cc_folder"] = cc_folder
    scope["cc_folder_tests"] = cc_folder_tests
    exec(compile(text, file, "exec"), scope)
    return found


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


def calls(tree: Tree) -> Iterator[Call]:
    """What all BUILD files call, in the order of their paths."""
    for file in tree.files(("BUILD.bazel",)):
        yield from _calls_of(tree, file.folder, file.text)


def named_files(tree: Tree) -> set[str]:
    """Paths of all files that a BUILD file names or a load() reads."""
    named: set[str] = set()
    for file in tree.files(("BUILD.bazel", ".bzl", "WORKSPACE")):
        for label in _LOAD.findall(file.text):
            named.add(_path_of(label, file.folder))
    for call in calls(tree):
        for string in strings_in(call.arguments):
            named.add(_path_of(string, call.file.rpartition("/")[0]))
    # Labels that macros of bazel/*.bzl hand to every test.
    for file in tree.files((".bzl",)):
        for label in re.findall(r'"(//[\w/.-]+:[\w./-]+)"', file.text):
            named.add(_path_of(label, file.folder))
    return named
