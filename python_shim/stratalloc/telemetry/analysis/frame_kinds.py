# SPDX-License-Identifier: Apache-2.0
"""Kinds of frames on a stack of torch's history, and what each names.

With stacks="all" a stack has C++ frames: the collector of the stack, the
allocator, dispatch, operators, nodes of backward, the interpreter, the start of
a thread. The file of a C++ frame is a name without a path, "??" or empty where
the library has no debug information, and the function "??" where it has no
symbol. An autograd thread has C++ frames alone, or none with stacks="python".
A function tells its kind by its outermost namespace; a file by its path.

Order among Python frames holds, and so does order among C++ frames; between the
two it does not, since CPython 3.11 runs several Python frames in one C++ frame.
"""

import enum
import functools
import os
import re

_PACKAGES = ("/site-packages/", "/dist-packages/")
_STANDARD = "/lib/python3"
_PROGRAMS = "/bin/"  # that packages install
# Code that torch.compile (a file of its cache, named by a hash) and torch.fx
# write: it has no line of the user's.
_GENERATED = re.compile(
    r"^<eval_with_key>|/([a-z2-7]{2})/c\1[a-z2-7]{40,}\.py$")
# Namespaces of torch, of this package and of C++'s library.
_TORCH = frozenset((
    "torch", "at", "c10", "c10d", "caffe2", "executorch", "functorch", "ska",
    "std", "__gnu_cxx", "pybind11", "stratalloc"))
# Functions of CPython and of torch's bindings that have no namespace.
_BINDINGS = re.compile(r"_|Py[A-Z_]|THP")

# This package, as a stack may spell it; its hooks are in every allocation's.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
_OURS = tuple(os.path.join(one, "") for one in {
    _PACKAGE, os.path.realpath(_PACKAGE)})


class Kind(enum.IntEnum):
    """The less, the better a frame says where memory was asked for."""

    USER = 0  # a line of Python in a file of the user's
    TYPED = 1  # a line of Python without a file: a prompt, a cell, exec()
    GENERATED = 2  # a line that torch.compile wrote
    NODE = 3  # a node of backward, in C++
    LIBRARY = 4  # a line of Python in a library
    TORCHS = 5  # one of torch, of this package or of the standard library
    FOREIGN = 6  # a C++ function outside of torch: an extension's
    OPERATOR = 7  # a call of an operator of torch, in C++
    INNER = 8  # how the stack was taken, how memory is allocated, no symbol


@functools.lru_cache(1 << 16)
def kind(file, function):
    """The Kind of a frame, by its file and function."""
    if file.endswith(".py") or _is_script(file, function):
        if _GENERATED.search(file):
            return Kind.GENERATED
        return _of_python(file)
    if _GENERATED.search(file):
        return Kind.GENERATED
    if file.startswith("<") and file.endswith(">"):
        return Kind.TORCHS if file.startswith("<frozen ") else Kind.TYPED
    return _of_cpp(function)


def _of_python(file):
    if file.startswith(_OURS):
        return Kind.TORCHS
    package = next((file.partition(part)[2] for part in _PACKAGES
                    if part in file), None)
    if package is not None:
        return Kind.TORCHS if package.startswith("torch/") else Kind.LIBRARY
    if _STANDARD in file:
        return Kind.TORCHS
    return Kind.LIBRARY if _PROGRAMS in file else Kind.USER


def _is_script(file, function):
    """Whether a file is a program in Python whose name has no ending."""
    base = os.path.basename(file)
    return bool(base) and "/" in file and "." not in base and (
        "(" not in function)


def _of_cpp(function):
    """A symbol without parameters is a C function: of the interpreter, of CUDA
    or of the C library, which start threads and call torch."""
    if _NODE.search(function):
        return Kind.NODE
    if "(" not in function:
        return Kind.INNER
    name = qualified(function)
    if name.startswith("at::_ops::"):
        return Kind.OPERATOR
    root, apart, _ = name.partition("::")
    if root in _TORCH or not apart and (not root or _BINDINGS.match(root)):
        return Kind.INNER
    return Kind.FOREIGN


# A node is called by apply(); that of Python functions, PyNode, by its frames
# of Python, and one of a C++ extension is the argument of CppNode.
_NODE = re.compile(
    r"^torch::autograd::(?:\w+::)*(?!PyNode::|Node::|Engine::)"
    r"(?:CppNode<(?P<own>.+)>|(?P<name>\w+))::apply\(")


def qualified(function):
    """"ns::name" of a C++ function: without what it returns and takes."""
    text = function.replace("(anonymous namespace)::", "")
    text = text.replace("operator()", "operator").partition(" [clone ")[0]
    text = text.partition("::{lambda")[0]
    kept, depth = [], 0
    for letter in text:
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(0, depth - 1)
        elif letter == "(" and not depth:
            break
        elif not depth:
            kept.append(letter)
    return "".join(kept).strip().rpartition(" ")[2]


def is_backward(function):
    """Whether a C++ frame runs backward: whatever it calls belongs to that."""
    return function.startswith("torch::autograd::Engine::evaluate_function(")


def named(file, line, function):
    """A frame as people read it: "file:line" of Python, the name of a node, an
    operator or a function of C++; "" where that says nothing."""
    which = kind(file, function)
    if which == Kind.INNER:
        return ""
    if which == Kind.NODE:
        found = _NODE.search(function)
        return f"{found['own'] or found['name']} (backward)"
    if which == Kind.OPERATOR:
        return "aten::" + qualified(function).split("::")[2]
    if which == Kind.FOREIGN and not line:
        return qualified(function)
    return f"{file}:{line}" if line else f"{file} {function}".strip()
