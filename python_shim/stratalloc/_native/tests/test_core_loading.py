# SPDX-License-Identifier: Apache-2.0
"""Messages about shared objects that are missing, unreadable or do not load."""

import ctypes
import types

import pytest

from stratalloc._native import core, intact


@pytest.fixture(name="package")
def _package(monkeypatch, tmp_path):
    """A package with an empty core and nothing beside it."""
    folder = tmp_path / "stratalloc"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libstratalloc.so").touch()
    monkeypatch.setattr(core, "PACKAGE", str(folder))
    monkeypatch.setattr(core, "_lib", None)
    return folder


def _said(function, *arguments):
    with pytest.raises(core.LibraryError) as caught:
        function(*arguments)
    text = str(caught.value)
    assert text.startswith("stratalloc: ") and "\n" not in text
    return text


@pytest.mark.parametrize("text, cure", [
    ("/lib/a.so: undefined symbol: x", "install stratalloc again"),
    ("/lib/a.so: invalid ELF header", "install stratalloc again"),
    ("libx.so.1: cannot open shared object file: No such file or directory",
     "install the library that it names"),
    ("/lib/libc.so.6: version `GLIBC_2.99' not found (required by a.so)",
     "this system is older than those that it was built for: build stratalloc "
     "on it, with `pip install .` in a clone")])
def test_core_that_does_not_load_says_what_helps(
        package, monkeypatch, text, cure):
    def refuse(path):
        assert path == str(package / "lib" / "libstratalloc.so")
        raise OSError(text)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert _said(core.lib) == (
        f"stratalloc: the core does not load: {text}; {cure}")
    assert not core.loaded()


def test_core_without_a_function_is_of_another_version(package, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: types.SimpleNamespace())
    assert "the core is of another version (" in _said(core.lib)
    assert not core.loaded() and package.exists()


def test_file_missing_from_a_source_tree_is_to_be_built(package):
    assert _said(core.library_path, "b.so") == (
        f"stratalloc: b.so is missing from {package / 'lib'}: this is a source "
        "tree; run `./dev build`")


@pytest.mark.parametrize("named, arguments", [
    ("stratalloc", ()), ("stratalloc-extra", ("stratalloc-extra",))])
def test_file_missing_from_an_installation_is_to_be_installed(
        package, named, arguments):
    (package.parent / "stratalloc-0.9.dist-info").mkdir()
    said = str(core.missing(str(package / "lib" / "b.so"), *arguments))
    assert said == (
        f"stratalloc: b.so is missing from {package / 'lib'}: the installation "
        f"is damaged; install {named} again")


@pytest.mark.parametrize("error", [
    OSError(5, "Input/output error"), ValueError("RECORD: line 1"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")])
def test_file_that_cannot_be_compared_is_refused(package, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(intact, "is_damaged", fail)
    assert _said(core.library_path, "libstratalloc.so") == (
        "stratalloc: libstratalloc.so cannot be compared with what was "
        f"installed ({error}): install stratalloc again")
    assert package.exists()


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
