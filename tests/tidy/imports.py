# SPDX-License-Identifier: Apache-2.0
"""The rule about imports: no circle between modules of the packages."""

import ast
from collections.abc import Iterator

from tests.tidy.rooms import BESIDE_CODE, is_of_a_room
from tests.tidy.tree import File, Tree


def import_cycles(tree: Tree) -> Iterator[str]:
    """Modules of a package import each other in one direction.

    Imports inside functions count as well: they hide a cycle, and do not undo
    it. Those for type checkers alone do not run.
    """
    modules = {}
    for file in tree.files((".py",)):
        if not is_of_a_room(file.path) or BESIDE_CODE.search(file.path):
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
