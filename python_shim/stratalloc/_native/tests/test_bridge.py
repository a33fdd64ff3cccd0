# SPDX-License-Identifier: Apache-2.0
"""Which minors of torch an installation serves, over files made by hand."""

import ctypes
import sys
import types

import pytest
from packaging.requirements import Requirement

from stratalloc._native import bridge, core
from stratalloc._native.errors import UnsupportedTorchError


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Makes an installation with bridges for these minors, as "2_11"."""
    def make(*minors):
        (tmp_path / "lib").mkdir()
        for minor in minors:
            (tmp_path / "lib" / f"libstratalloc_torch_{minor}.so").touch()
        monkeypatch.setattr(core, "PACKAGE", str(tmp_path))
    return make


@pytest.fixture(name="refusal")
def _refusal(installed, monkeypatch, tmp_path):
    """What load() says: refusal(version, cuda, the functions of its bridge).

    The bridge is that of 2.15; an OSError for it is that of the linker.
    """
    installed("2_11", "2_15")

    def make(version="2.15.0+cu132", cuda="13.2", found=None):
        def opened(path):
            assert path == str(tmp_path / "lib" / "libstratalloc_torch_2_15.so")
            if isinstance(found, OSError):
                raise found
            return found

        monkeypatch.setattr(ctypes, "CDLL", opened)
        monkeypatch.setattr(bridge, "_lib", None)
        monkeypatch.setattr(core, "lib", lambda: None)
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(
            version=types.SimpleNamespace(cuda=cuda)))
        with pytest.raises(UnsupportedTorchError) as caught:
            bridge.load(version)
        assert not bridge.loaded()
        return str(caught.value)
    return make


_REINSTALL = ('pip install --force-reinstall '
              '"torch>=2.11,<2.16,!=2.12.*,!=2.13.*,!=2.14.*"')


def test_requirement_with_bridges_admits_exactly_their_minors(installed):
    installed("2_9", "2_15", "2_11")
    assert bridge.supported() == ["2.9", "2.11", "2.15"]
    wanted = Requirement(bridge.requirement().strip('"')).specifier
    versions = [f"2.{minor}.1" for minor in range(8, 17)]
    assert list(wanted.filter(versions)) == ["2.9.1", "2.11.1", "2.15.1"]


def test_requirement_with_one_bridge_is_its_minor(installed):
    installed("2_15")
    assert bridge.requirement() == '"torch>=2.15,<2.16"'


@pytest.mark.parametrize("version", [
    "2.15.0", "2.11.2+cu130", "2.15.0+cpu", "2.11.0.post1", "2.15.1.post2+a.b"])
def test_release_with_a_bridge_is_supported(installed, version):
    installed("2_11", "2_15")
    bridge.require_supported(version)


@pytest.mark.parametrize("version", [
    "2.15.0a0+git123", "2.15.0.dev20260101", "2.15.0.dev20260101+cu132",
    "2.15.0rc1", "2.11.0a0+nv26.01", "2.15", "2.15.0b", "2.15.0\n", "nightly",
    ""])
def test_version_that_is_no_release_is_refused(installed, version):
    installed("2_11", "2_15")
    with pytest.raises(UnsupportedTorchError) as caught:
        bridge.require_supported(version)
    assert str(caught.value) == (
        f"stratalloc: torch {version} is not a release, and bridges are built "
        f"for releases only: install one, {_REINSTALL}")


def test_torch_without_cuda_is_named_before_a_library_is_opened(refusal):
    said = refusal("2.15.0+cpu", None, OSError("libtorch_cuda.so: missing"))
    assert said == (
        "stratalloc: torch 2.15.0+cpu is built without CUDA: install a build "
        f"that has it, {_REINSTALL}")


def test_bridge_that_does_not_load_names_both_causes(refusal):
    said = refusal(found=OSError("undefined symbol: x"))
    assert said == (
        "stratalloc: the bridge for torch 2.15 does not load into torch "
        "2.15.0+cu132: undefined symbol: x; install stratalloc again, or "
        f"PyTorch's own build of torch: {_REINSTALL}")


def test_torch_that_a_bridge_does_not_fit_names_what_to_install(refusal):
    def check(message, size):
        assert size == len(message)
        message.value = b"a block has 96 bytes, not 88"
        return 1

    said = refusal(found=types.SimpleNamespace(
        stratalloc_torch_built_for=lambda: 215, stratalloc_torch_check=check))
    assert said == (
        "stratalloc: the bridge for torch 2.15 does not fit this torch "
        "2.15.0+cu132: a block has 96 bytes, not 88; install PyTorch's own "
        f"build of torch: {_REINSTALL}")


def test_library_without_the_functions_of_a_bridge_is_of_another_version(
        refusal):
    said = refusal(found=types.SimpleNamespace())
    assert said.startswith(
        "stratalloc: libstratalloc_torch_2_15.so is of another version (")
    assert said.endswith("; install stratalloc again")


def test_requirement_without_a_bridge_is_any_torch(installed):
    installed()
    assert bridge.requirement() == "torch"
