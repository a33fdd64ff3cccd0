# SPDX-License-Identifier: Apache-2.0
"""The modules of a torch module, walked."""


def walk(root):
    """(path, module) of the tree in named_modules' order, each object once.

    Not named_modules itself: subclasses override it, it hashes modules, and a
    module whose __init__ has not run to its end has no children to ask for.
    """
    seen = set()
    todo = [("", root)]
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = list((module.__dict__.get("_modules") or {}).items())
        for name, child in reversed(children):
            if child is not None:
                todo.append((f"{path}.{name}" if path else name, child))
