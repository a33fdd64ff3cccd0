# SPDX-License-Identifier: Apache-2.0
"""A torch without a bridge, and bridges that do not fit: one line, and torch as
it was."""

import os
import pathlib
import shutil

import pytest
import torch

from tests.system.e2e import running

_MINOR = "_".join(torch.__version__.split(".")[:2])
_BRIDGE = f"libstratalloc_torch_{_MINOR}.so"

_PROGRAM = running.LOAD + """
import torch
torch.__version__ = {version!r}
import stratalloc
try:
    stratalloc.enable()
except RuntimeError as error:
    print(type(error).__name__, error)
print(stratalloc.is_enabled(), torch.cuda.memory.get_allocator_backend())
print(torch.ones(3, device="cuda").sum().item())
"""


def _said(tmp_path, version=torch.__version__, **settings):
    """What enable() said; torch worked on its own allocator after it."""
    path = tmp_path / "script.py"
    path.write_text(_PROGRAM.format(version=version))
    done = running.python(path, fresh=True, **settings)
    *said, state, total = running.must_work(done).splitlines()
    assert (state, total, done.stderr) == ("False native", "3.0", "")
    assert len(said) == 1, said
    return said[0]


@pytest.fixture(name="site")
def _site(tmp_path):
    """A copy of the installation, whose files may be changed."""
    site = tmp_path / "site"
    shutil.copytree(os.environ["STRATALLOC_SITE"], site)
    for path in site.rglob("*"):
        path.chmod(0o755)
    return site


def _path_of(site):
    return os.pathsep.join(
        [str(site), *os.environ["PYTHONPATH"].split(os.pathsep)[1:]])


def _change(site, old, new):
    """Replaces bytes of the bridge."""
    path = site / "stratalloc" / "lib" / _BRIDGE
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def _forget_digests(site):
    (record,) = site.glob("stratalloc-*.dist-info/RECORD")
    record.unlink()


@pytest.mark.parametrize("version", ["2.10.0+cu128", "2.16.0+cu132", "3.0.1"])
def test_torch_without_a_bridge_is_one_line(tmp_path, version):
    said = _said(tmp_path, version)
    assert said.startswith(
        f"UnsupportedTorchError stratalloc: torch {version} has no bridge in "
        "this installation")
    assert _MINOR.replace("_", ".") in said and "pip install" in said


def test_bridge_with_a_changed_byte_is_one_line(tmp_path, site):
    path = site / "stratalloc" / "lib" / _BRIDGE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    said = _said(tmp_path, PYTHONPATH=_path_of(site))
    assert said == (
        f"LibraryError stratalloc: {_BRIDGE} is not as it was installed, some "
        "of its bytes have changed: pip install --force-reinstall stratalloc")


def test_bridge_that_wants_a_missing_symbol_is_one_line(tmp_path, site):
    _change(site, b"aoti_torch_abi_version\0", b"aoti_torch_abi_versioX\0")
    _forget_digests(site)
    said = _said(tmp_path, PYTHONPATH=_path_of(site))
    assert said.startswith("UnsupportedTorchError stratalloc: the bridge for")
    assert "undefined symbol: aoti_torch_abi_versioX" in said
    assert said.endswith("; pip install --force-reinstall stratalloc")


def test_bridge_of_another_minor_under_this_name_is_one_line(tmp_path, site):
    lib = site / "stratalloc" / "lib"
    (lib / _BRIDGE).rename(lib / "libstratalloc_torch_2_99.so")
    said = _said(tmp_path, "2.99.0", PYTHONPATH=_path_of(site))
    assert said.startswith("UnsupportedTorchError stratalloc: ")
    assert f"was built for torch {_MINOR.replace('_', '.')}, this is" in said


@pytest.mark.parametrize("strict", ["0", "1"])
def test_run_with_a_damaged_bridge_says_so_before_the_program(
        tmp_path, site, strict):
    (site / "stratalloc" / "lib" / _BRIDGE).write_bytes(b"no library")
    program = tmp_path / "program.py"
    program.write_text("print('it ran')")
    done = running.python(
        "-m", "stratalloc", "run", "--simulate", "64MiB", program,
        fresh=True, PYTHONPATH=_path_of(site), STRATALLOC_STRICT=strict)
    assert done.returncode == 3 and done.stdout == ""
    simulated, line = done.stderr.splitlines()
    assert simulated.startswith("stratalloc: simulated CUDA")
    assert line.startswith(f"stratalloc: {_BRIDGE} is not as it was installed")


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
