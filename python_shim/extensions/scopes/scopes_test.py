# SPDX-License-Identifier: Apache-2.0
"""The extension against the real core, without torch and without the package.

STRATALLOC_SCOPES_DIR names the folder that holds both files when they are not
below python_shim/ (a run outside Bazel).
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import threading

import pytest


def _load():
    folder = os.environ.get("STRATALLOC_SCOPES_DIR")
    core = folder or "python_shim"
    # The extension finds the core by SONAME among what is already loaded.
    ctypes.CDLL(os.path.abspath(os.path.join(core, "libstratalloc.so")))
    path = os.path.abspath(
        os.path.join(folder or "python_shim/extensions/scopes", "_scopes.abi3.so")
    )
    loader = importlib.machinery.ExtensionFileLoader("_scopes", path)
    spec = importlib.util.spec_from_loader("_scopes", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


scopes = _load()


@pytest.fixture(autouse=True)
def empty_stack():
    assert scopes.current() == (0, 0, 0)
    yield
    left = 0
    while scopes.pop():
        left += 1
    assert left == 0, "the test left frames on the stack"


def test_push_and_pop_nest():
    scopes.push(7, 5, 4)
    scopes.push(8, 1, 1)
    assert scopes.current() == (8, 1, 1)
    assert scopes.pop() is True
    assert scopes.current() == (7, 5, 4)
    assert scopes.pop() is True


def test_pop_of_empty_stack_is_false():
    assert scopes.pop() is False
    scopes.push(3, 0, 0)
    assert scopes.current() == (3, 0, 0)
    scopes.pop()


def test_the_category_of_the_scope_on_top_alone():
    assert scopes.recategorize(0, 4) is False, "no frame is there"
    scopes.push(7, 4, 3)
    scopes.push(8, 1, 1)
    assert scopes.recategorize(7, 7) is False
    assert scopes.current() == (8, 1, 1)
    scopes.pop()
    assert scopes.recategorize(7, 7) is True
    assert scopes.current() == (7, 7, 3)
    with pytest.raises(ValueError):
        scopes.recategorize(7, 9)
    with pytest.raises(TypeError):
        scopes.recategorize(7)
    assert scopes.current() == (7, 7, 3)
    scopes.pop()


def test_leaving_ends_what_was_left_above():
    scopes.push(7, 4, 3)
    below = scopes.enter(8)
    assert below == 1
    scopes.push(9, 1, 1)
    scopes.enter(10)
    scopes.leave(below)
    assert scopes.current() == (7, 4, 3)
    scopes.leave(below)
    assert scopes.current() == (7, 4, 3), "never its caller's"
    with pytest.raises(ValueError):
        scopes.leave(-1)
    with pytest.raises(TypeError):
        scopes.leave(None)
    scopes.leave(0)


def test_largest_scope_id():
    scopes.push(2**32 - 1, 0, 0)
    assert scopes.current()[0] == 2**32 - 1
    scopes.pop()


def test_interned_path_has_one_id_and_its_name_back():
    path = "Bert.encoder.layer.0/größe"
    scope = scopes.intern(path)
    assert scope > 0
    assert scopes.intern(path) == scope
    assert scopes.intern(path + "x") != scope
    assert scopes.name(scope) == path
    assert scopes.intern("") == 0
    assert scopes.name(0) == "(no scope)"
    assert scopes.owned(scope) == 0


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((1, 2), TypeError),
        ((1, 2, 3, 4), TypeError),
        (("1", 0, 0), TypeError),
        ((1, None, 0), TypeError),
        ((-1, 0, 0), OverflowError),
        ((2**32, 0, 0), OverflowError),
        ((2**70, 0, 0), OverflowError),
        ((1, 9, 0), ValueError),
        ((1, -1, 0), ValueError),
        ((1, 0, 6), ValueError),
        ((1, 0, -1), ValueError),
    ],
)
def test_bad_push_raises_and_pushes_nothing(arguments, error):
    with pytest.raises(error):
        scopes.push(*arguments)
    assert scopes.current() == (0, 0, 0)


def test_bad_names_raise():
    with pytest.raises(ValueError, match="NUL"):
        scopes.intern("a\0b")
    with pytest.raises(TypeError):
        scopes.intern(b"bytes")
    with pytest.raises(OverflowError):
        scopes.name(-1)


def test_relabel_of_foreign_memory_is_false():
    buffer = ctypes.create_string_buffer(64)
    address = ctypes.addressof(buffer)
    assert scopes.relabel(address, 64, scopes.intern("nobody"), 1) is False
    assert scopes.relabel(address, 64, scopes.intern("nobody"), -1) is False


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((1, 2, 3), TypeError),
        ((-1, 2, 3, 4), OverflowError),
        ((1, "2", 3, 4), TypeError),
        ((1, 2, 3, -2), ValueError),
        ((1, 2, 3, 9), ValueError),
    ],
)
def test_bad_relabel_raises(arguments, error):
    with pytest.raises(error):
        scopes.relabel(*arguments)


def test_threads_have_their_own_stacks():
    scopes.push(1, 0, 0)
    seen = []

    def work(scope):
        seen.append(scopes.current() == (0, 0, 0))
        for _ in range(1000):
            scopes.push(scope, 5, 4)
            seen.append(scopes.current()[0] == scope)
            scopes.pop()

    threads = [
        threading.Thread(target=work, args=(scope,)) for scope in (10, 20, 30)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 3003 and all(seen)
    assert scopes.current() == (1, 0, 0)
    scopes.pop()
