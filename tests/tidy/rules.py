# SPDX-License-Identifier: Apache-2.0
"""The repository's own rules, each a function from a tree to complaints.

A rule takes the `Tree` and yields "path:line: what is wrong; what to do".
Nothing is built and nothing is imported from the project.
"""

import ast
import re
from collections.abc import Iterator

from tests.tidy import build_files
from tests.tidy.doors import room_doors
from tests.tidy.functions import long_functions
from tests.tidy.rooms import LAYERS, layer_of, right_of, room_of
from tests.tidy.tree import File, Tree

_CUDA_ROOMS = (
    "allocator/cuda/", "tiering/gpu/", "tests/conformance/", "tests/cudasim/",
)
_TORCH_ROOMS = (
    "python_shim/torch_bridge/", "tests/cudasim/", "tests/replay/",
)

_CUDA_HEADER = re.compile(
    r"(cuda\w*|cublas\w*|cudnn\w*|cufft\w*|curand\w*|cusparse\w*|cusolver\w*"
    r"|cupti\w*|nvrtc|nvml|driver_types|vector_types|vector_functions"
    r"|builtin_types|device_\w+|cooperative_groups)\.(h|hpp)"
    r"|(cub|thrust|cuda|crt|nv|nvtx3|cooperative_groups)/.*"
)
_TORCH_HEADER = re.compile(r"(ATen|c10|caffe2|torch|pybind11)/.*")
_INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
_MUTEX = re.compile(
    r"\bstd::(?:recursive_|shared_)?(?:timed_)?mutex\b|\bpthread_mutex_t\b"
)
# What the allocator keeps of a handle, by its name and by the ways to it.
_HANDLE_ENTRY = re.compile(r"\bHandleEntry\b|\.entry\(\)|->entries\b")
# Its library, functions, variables and module. The name of the package to
# install is for users, its folder for upward_includes.
_SIMULATOR = re.compile(
    r"(?<!stratalloc-)(?<!tests/)\w*cudasim\w*", re.IGNORECASE
)
# Tests in Python, and what only tests use.
_BESIDE_CODE = re.compile(r"_test\.py$|/tests/|/testing/")
_UNFINISHED = re.compile(r"\b(?:FIX" + r"ME|TO" + r"DO)\b")
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
_HANDLE_TABLE = "allocator/memory/handle_table.h"
_STATE_TABLE = "allocator/RESIDENCY.md"

# What a README says is ours: a file, or a name in the manner of C++ or of a
# member, perhaps with its class and (). Words of one hump may be English.
_NAMED_FILE = re.compile(r"(?:[\w.]+/)*\w+\.(?:cc|h|cu|py|bzl)")
_NAME = re.compile(
    r"(?:\w+::)*([A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+|[a-z]\w*_)(?:\(\))?"
    r"|(?:\w+::)+(\w+)(?:\(\))?"
)
# What a comment in C++ says is: a source of ours (headers may be others'), a
# function under a lock, a member of one of our classes.
_SOURCE_IN_COMMENT = re.compile(r"(?<![\w/.<-])(?:\w+/)*\w+\.cc\b")
_LOCKED_IN_COMMENT = re.compile(r"\b\w+Locked\b")
_MEMBER_IN_COMMENT = re.compile(r"\b([A-Z]\w+)::(\w+)\b")
_OUR_CLASS = re.compile(
    r"\b(?:class|struct)\s+(?:\w+\([^)]*\)\s+)?([A-Z]\w+)"
)

CPP = (".h", ".cc", ".cu")
# A header longer than this has a second noun in it.
_HEADER_LINES = 350
# What has to carry a licence line and belong to a target.
_SOURCES = CPP + (".py", ".sh", ".bzl", ".S", ".lds")


def _includes(file: File) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file.text.splitlines(), 1):
        match = _INCLUDE.match(line)
        if match:
            yield number, match.group(2)


def upward_includes(tree: Tree) -> Iterator[str]:
    """No room includes one to its right."""
    for file in tree.files(CPP):
        room = room_of(file.path)
        if room is None:
            continue
        for number, header in _includes(file):
            other = room_of(header)
            if other is None or not right_of(other, room):
                continue
            # A test beside the code is a test: it may run on the simulator.
            if file.is_test and other == "tests":
                continue
            yield (
                f"{file.path}:{number}: {room} includes {header}, which is "
                f"to its right ({other}); let {room} own an interface that "
                f"{other} implements"
            )


def upward_layers(tree: Tree) -> Iterator[str]:
    """No layer of a room includes one to its right; every folder is a layer."""
    for file in tree.files(CPP):
        own = layer_of(file.path)
        if own is None:
            continue
        room, layer = own
        if layer not in LAYERS[room]:
            yield (
                f"{file.path}: {room}/{layer} is no layer of {room}; give it a "
                "place in LAYERS of tests/tidy/rooms.py"
            )
            continue
        if file.is_test:
            continue  # beside its part, and on the whole device
        for number, header in _includes(file):
            other = layer_of(header)
            # Another room of the same folder is upward_includes' to report.
            if other is None or other[0] != room or (
                room_of(header) != room_of(file.path)
            ):
                continue
            if LAYERS[room].index(other[1]) > LAYERS[room].index(layer):
                yield (
                    f"{file.path}:{number}: the layer {layer} of {room} "
                    f"includes {header}, which is to its right; let {layer} "
                    "own an interface that the other implements"
                )


def cuda_headers(tree: Tree) -> Iterator[str]:
    """CUDA's headers stay where the device is."""
    for file in tree.files(CPP):
        if file.path.startswith(_CUDA_ROOMS):
            continue
        for number, header in _includes(file):
            if _CUDA_HEADER.fullmatch(header):
                yield (
                    f"{file.path}:{number}: CUDA header {header} outside "
                    f"{', '.join(_CUDA_ROOMS)}; go through "
                    "allocator/cuda/cuda_api.h"
                )


def torch_headers(tree: Tree) -> Iterator[str]:
    """torch's headers stay in the bridges: the core serves every torch."""
    for file in tree.files(CPP):
        if file.path.startswith(_TORCH_ROOMS):
            continue
        for number, header in _includes(file):
            if _TORCH_HEADER.fullmatch(header):
                yield (
                    f"{file.path}:{number}: torch header {header} outside "
                    f"{', '.join(_TORCH_ROOMS)}"
                )


def simulator_names(tree: Tree) -> Iterator[str]:
    """What ships does not know which device simulates."""
    for file in tree.files(_SOURCES):
        if file.is_test or _BESIDE_CODE.search(file.path):
            continue
        if room_of(file.path) is None:
            continue
        for number, line in enumerate(file.text.splitlines(), 1):
            match = _SIMULATOR.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; the simulated "
                    "device registers itself (stratalloc/simulate.py), what is "
                    "done on it is asked of the dispatcher or of CUDA"
                )


def raw_mutexes(tree: Tree) -> Iterator[str]:
    """Locks have ranks; a raw mutex has none."""
    for file in tree.files(CPP):
        if file.path.startswith(("allocator/base/", "tests/")) or file.is_test:
            continue
        for number, line in enumerate(file.code.splitlines(), 1):
            match = _MUTEX.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; use the ranked "
                    "mutex of allocator/base/mutex.h"
                )


def handle_entries(tree: Tree) -> Iterator[str]:
    """What is mapped and lives at a handle is the allocator's own."""
    for file in tree.files(CPP):
        if file.path.startswith("allocator/") or room_of(file.path) is None:
            continue
        for number, line in enumerate(file.code.splitlines(), 1):
            match = _HANDLE_ENTRY.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; ask the HandleRef "
                    "for its state and its use, or the DeviceAllocator"
                )


def unfinished_marks(tree: Tree) -> Iterator[str]:
    """Nothing is left for later in the code."""
    for file in tree.files():
        for number, line in enumerate(file.text.splitlines(), 1):
            match = _UNFINISHED.search(line)
            if match:
                yield (
                    f"{file.path}:{number}: {match.group()}; do it, or say "
                    "in the room's README what is not there yet"
                )


def orphans(tree: Tree) -> Iterator[str]:
    """Every source belongs to a target: what is not built rots."""
    named = build_files.named_files(tree)
    for file in tree.files(_SOURCES):
        if file.path not in named:
            yield (
                f"{file.path}: in no BUILD target; name it in "
                f"{file.folder or '.'}/BUILD.bazel or delete it"
            )


def licence_lines(tree: Tree) -> Iterator[str]:
    """Every source says its licence, first or right after `#!`."""
    for file in tree.files():
        if not (
            file.path.endswith(_SOURCES)
            or file.name in ("BUILD.bazel", "WORKSPACE", "dev")
            or file.text.startswith("#!")
        ):
            continue
        if not any(
            "SPDX-License-Identifier: Apache-2.0" in line
            for line in file.text.splitlines()[:3]
        ):
            yield (
                f"{file.path}:1: no SPDX-License-Identifier: Apache-2.0 in "
                "the first lines"
            )


def long_headers(tree: Tree) -> Iterator[str]:
    """A header is read in one go."""
    for file in tree.files((".h",)):
        lines = len(file.text.splitlines())
        if lines > _HEADER_LINES:
            yield (
                f"{file.path}:{_HEADER_LINES + 1}: {lines} lines, "
                f"{_HEADER_LINES} are the most; find the second noun and give "
                "it a file"
            )


def missing_readmes(tree: Tree) -> Iterator[str]:
    """A room explains itself to whoever opens it."""
    rooms = set()
    for file in tree.files(_SOURCES):
        room = room_of(file.path)
        if room:
            rooms.add(room)
        parts = file.path.split("/")
        if parts[0] in ("tests", "third_party") and len(parts) > 1:
            rooms.add(parts[0])
        if parts[0] == "tests" and len(parts) > 2:
            rooms.add("/".join(parts[:2]))
    for room in sorted(rooms):
        if not tree.has(room + "/README.md"):
            yield (
                f"{room}: no README.md; say what it is for, what it may "
                "include and where to start reading"
            )


def wide_readmes(tree: Tree) -> Iterator[str]:
    """READMEs fold at 100 columns; a row of a table cannot."""
    for file in tree.files((".md",)):
        code = False
        for number, line in enumerate(file.text.splitlines(), 1):
            if line.lstrip().startswith("```"):
                code = not code
            if code or line.lstrip().startswith(("|", "http")):
                continue
            if len(line) > 100:
                yield (
                    f"{file.path}:{number}: {len(line)} columns; fold the "
                    "text at 100"
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
    for file in tree.files(_SOURCES + (".md", ".bazel", "dev")):
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


def _is_of_a_room(path: str) -> bool:
    return not path.startswith("tests/") and (
        room_of(path) is not None or path in ("DESIGN.md", "CONTRIBUTING.md")
    )


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
        if not _is_of_a_room(file.path):
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
        if not _is_of_a_room(file.path):
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


def import_cycles(tree: Tree) -> Iterator[str]:
    """Modules of a package import each other in one direction.

    Imports inside functions count as well: they hide a cycle, and do not undo
    it. Those for type checkers alone do not run.
    """
    modules = {}
    for file in tree.files((".py",)):
        if not _is_of_a_room(file.path) or _BESIDE_CODE.search(file.path):
            continue
        name = file.path[: -len(".py")].replace("/", ".")
        name = name.removeprefix("python_shim.").removesuffix(".__init__")
        modules[name] = file
    imports = {name: sorted(_imports(name, file, modules))
               for name, file in modules.items()}
    done: set[str] = set()

    def walk(name: str, above: tuple[str, ...]) -> Iterator[str]:
        if name in above:
            cycle = above[above.index(name):] + (name,)
            yield (
                f"{modules[name].path}: {' -> '.join(cycle)}; what two modules "
                "need of each other belongs below both"
            )
        elif name not in done:
            for other in imports[name]:
                yield from walk(other, above + (name,))
            done.add(name)

    for name in sorted(modules):
        yield from walk(name, ())


def _imports(name: str, file: File, modules: dict[str, File]) -> set[str]:
    """The modules of `modules` that a module imports, its own package aside."""
    found = set()
    tree = ast.parse(file.text)
    unrun = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in unrun:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" if
                         f"{node.module}.{alias.name}" in modules
                         else node.module for alias in node.names)
    # A package is there before its modules are.
    return {other for other in found if other in modules and other != name
            and not name.startswith(other + ".")}


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


def handle_states(tree: Tree) -> Iterator[str]:
    """The table of a handle's residency has a row for every state."""
    states: list[str] = []
    for file in tree.files((_HANDLE_TABLE,)):
        body = re.search(r"enum class HandleState\b[^{]*\{([^}]*)\}", file.code)
        states = re.findall(r"\b(k\w+)\s*=\s*\d+", body[1]) if body else []
    rows: list[str] = []
    for file in tree.files((_STATE_TABLE,)):
        for number, line in enumerate(file.text.splitlines(), 1):
            if not line.startswith("|"):
                continue
            rows += re.findall(r"\bk[A-Z]\w*", line.split("|")[1])
            for name in re.findall(r"\bk[A-Z]\w*", line):
                if name not in states:
                    yield (
                        f"{file.path}:{number}: {name}; {_HANDLE_TABLE} has "
                        "no such state"
                    )
    for state in states:
        if rows.count(state) != 1:
            yield (
                f"{_STATE_TABLE}: {rows.count(state)} rows for {state}; say "
                "once what each event does in it"
            )


ALL = (
    upward_includes,
    upward_layers,
    room_doors,
    cuda_headers,
    torch_headers,
    simulator_names,
    raw_mutexes,
    handle_entries,
    unfinished_marks,
    orphans,
    licence_lines,
    long_headers,
    long_functions,
    missing_readmes,
    wide_readmes,
    unknown_rules,
    unknown_names,
    lock_order,
    handle_states,
    import_cycles,
)
