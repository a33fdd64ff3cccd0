# SPDX-License-Identifier: Apache-2.0
"""Rules about imports: no circles, no layer to the right, doors of the package.

Imports inside functions count as well: they hide a circle, and do not undo it.
Those for type checkers alone do not run.
"""

import ast
from collections.abc import Iterator

from tests.repository.tidy.rooms import (
    BESIDE_CODE,
    PACKAGE_ALONE,
    PACKAGE_DOORS,
    PACKAGE_LAYERS,
    is_of_a_room,
    layer_of_module,
    module_of,
)
from tests.repository.tidy.tree import File, Tree


def _modules(tree: Tree) -> dict[str, File]:
    """The modules that ship, by the names that they are imported by."""
    modules = {}
    for file in tree.files((".py",)):
        if not is_of_a_room(file.path) or BESIDE_CODE.search(file.path):
            continue
        name = module_of(file.path)
        if name is None:
            name = file.path[: -len(".py")].replace("/", ".")
            name = name.removeprefix("python_shim.").removesuffix(".__init__")
        modules[name] = file
    return modules


def import_cycles(tree: Tree) -> Iterator[str]:
    """Modules of a package import each other in one direction."""
    modules = _modules(tree)
    imports = {name: sorted(_others(name, file, modules))
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


def upward_imports(tree: Tree) -> Iterator[str]:
    """No layer of the package imports one to its right; every part is one."""
    modules = {name: file for name, file in _modules(tree).items()
               if module_of(file.path)}
    for name, file in sorted(modules.items()):
        layer = layer_of_module(name)
        if layer not in PACKAGE_LAYERS:
            yield (
                f"{file.path}: stratalloc.{layer} is no layer of the package; "
                "give it a place in PACKAGE_LAYERS of tests/repository/tidy/rooms.py"
            )
            continue
        for line, other in _imports(file, modules):
            place = layer_of_module(other)
            if _is_other(other, name, modules) and place in PACKAGE_LAYERS and (
                PACKAGE_LAYERS.index(place) > PACKAGE_LAYERS.index(layer)
            ):
                yield (
                    f"{file.path}:{line}: the layer {layer} of the package "
                    f"imports {other}, which is to its right; move what both "
                    "need to the left"
                )


def package_doors(tree: Tree) -> Iterator[str]:
    """A part with a door imports the package through it; some import nothing."""
    modules = _modules(tree)
    for name, file in sorted(modules.items()):
        for folder in PACKAGE_ALONE:
            if not file.path.startswith(folder + "/"):
                continue
            for line, other in _imports(file, modules):
                if other.partition(".")[0] == "stratalloc" and not (
                    other in modules
                    and modules[other].path.startswith(folder + "/")
                ):
                    yield (
                        f"{file.path}:{line}: {folder} imports {other}; it "
                        "imports nothing of the package but its own modules"
                    )
        for part, door in PACKAGE_DOORS.items():
            if name == door or not f"{name}.".startswith(part + "."):
                continue
            for line, other in _imports(file, modules):
                if other.partition(".")[0] == part.partition(".")[0] and (
                    not f"{other}.".startswith(part + ".")
                ):
                    yield (
                        f"{file.path}:{line}: {part} imports {other}; import it "
                        f"from {door}"
                    )


def _others(name: str, file: File, modules: dict[str, File]) -> set[str]:
    """The modules of `modules` that a module imports, its own package aside."""
    return {other for _, other in _imports(file, modules)
            if _is_other(other, name, modules)}


def _is_other(other: str, name: str, modules: dict[str, File]) -> bool:
    # A package is there before its modules are.
    return other in modules and not f"{name}.".startswith(other + ".")


def _imports(file: File,
             modules: dict[str, File]) -> Iterator[tuple[int, str]]:
    """(line, module) of each import; a name that is no module is its module's."""
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
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield node.lineno, whole if whole in modules else node.module
