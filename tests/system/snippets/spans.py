# SPDX-License-Identifier: Apache-2.0
"""Spans of code: whether what they name is there and takes these arguments."""

import ast
import importlib
import inspect

import stratalloc
from tests.system.snippets import manifest


class Wrong(Exception):
    """What a span promises is not there."""


def check(text):
    """"resolved", or None for a span that is no call and no dotted name of
    stratalloc; Wrong."""
    if text in manifest.SPANS_LEFT:
        return manifest.SPANS_LEFT[text]
    code = text.removeprefix("with ").rstrip(":")
    if code.startswith("@"):
        code = code[1:]
    for variable in (" as trace",):
        code = code.removesuffix(variable)
    try:
        node = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    if not (isinstance(node, (ast.Call, ast.Subscript))
            or text.startswith("stratalloc.")):
        return None
    _resolved(node)
    return "resolved"


def _resolved(node):
    """The object that a node names, or _ANY for a value."""
    if isinstance(node, ast.Call):
        target = _resolved(node.func)
        for one in node.args:
            if isinstance(one, ast.Call):
                _resolved(one)
        if target is not _ANY:
            _bind(target, node)
        return _ANY if target is _ANY else _returned(target)
    if isinstance(node, ast.Subscript):
        _resolved(node.value)
        return _ANY
    if isinstance(node, ast.Attribute):
        value = _resolved(node.value)
        return _ANY if value is _ANY else _attribute(value, node.attr)
    if isinstance(node, ast.Name):
        return _name(node.id)
    return _ANY


_ANY = object()


def _name(name):
    if name in manifest.VALUES:
        return _ANY
    if name in manifest.HOMES:
        return importlib.import_module(name)
    for home in manifest.HOMES:
        try:
            return _attribute(place(home), name)
        except Wrong:
            pass
    raise Wrong(f"nothing is called {name}")


def place(path):
    """The module or class of a dotted path."""
    module, _, rest = path, "", ""
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ImportError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
    for name in filter(None, rest.split(".")):
        found = getattr(found, name)
    return found


def _attribute(value, name):
    if value is stratalloc and not name.startswith("_") and name not in (
            *stratalloc._NAMES, *stratalloc._MODULES):
        # Another module may have imported it; a program has not.
        raise Wrong(f"stratalloc has no {name}")
    if hasattr(value, name):
        return getattr(value, name)
    if inspect.ismodule(value):
        try:
            return importlib.import_module(f"{value.__name__}.{name}")
        except ImportError:
            pass
    raise Wrong(f"{getattr(value, '__name__', value)} has no {name}")


def _is_ours(value):
    return (getattr(value, "__module__", None) or "").startswith("stratalloc")


def _bind(target, node):
    """Wrong if a callable of ours does not take what a call gives. A call
    without arguments is its name."""
    if not callable(target):
        raise Wrong(f"{ast.unparse(node.func)} cannot be called")
    if not _is_ours(target) or not (node.args or node.keywords):
        return
    signature = inspect.signature(target)
    first = next(iter(signature.parameters.values()), None)
    given = [None] * len(node.args)
    if first is not None and first.name == "self":
        given.insert(0, None)
    try:
        signature.bind_partial(*given, **{
            one.arg: None for one in node.keywords if one.arg})
    except TypeError as error:
        raise Wrong(f"{ast.unparse(node)}: {error}") from None


def _returned(target):
    """What a function of ours returns, by its docstring's "Returns: Class"."""
    said = inspect.getdoc(target) or ""
    name = said.partition("Returns: ")[2].split(" ")[0].split(",")[0].strip(",.;")
    module = inspect.getmodule(target)
    found = getattr(module, name, _ANY) if name.isidentifier() else _ANY
    return found if inspect.isclass(found) and not issubclass(
        found, dict) else _ANY
