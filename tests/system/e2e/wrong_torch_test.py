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
torch.__version__, torch.version.cuda = {version!r}, {cuda!r}
import stratalloc
try:
    stratalloc.enable()
except RuntimeError as error:
    print(type(error).__name__, error)
print(stratalloc.is_enabled(), torch.cuda.memory.get_allocator_backend())
print(torch.ones(3, device="cuda").sum().item())
"""


def _said(tmp_path, version=torch.__version__, cuda=torch.version.cuda,
          **settings):
    """What enable() said; torch worked on its own allocator after it."""
    path = tmp_path / "script.py"
    path.write_text(_PROGRAM.format(version=version, cuda=cuda))
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


def _change(site, old, new, name=_BRIDGE):
    """Replaces bytes of a library."""
    path = site / "stratalloc" / "lib" / name
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def _change_a_byte(site):
    """Of the bridge; returns what is said of it."""
    path = site / "stratalloc" / "lib" / _BRIDGE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return (f"stratalloc: {_BRIDGE} is not as it was installed, some of its "
            "bytes have changed: install stratalloc again")


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


def test_pre_release_of_a_minor_with_a_bridge_is_one_line(tmp_path):
    version = _MINOR.replace("_", ".") + ".0a0+git1234567"
    said = _said(tmp_path, version)
    assert said.startswith(
        f"UnsupportedTorchError stratalloc: torch {version} is not a release")
    assert "pip install --force-reinstall \"torch>=2." in said


def test_torch_without_cuda_is_one_line(tmp_path):
    said = _said(tmp_path, cuda=None)
    assert said.startswith(
        f"UnsupportedTorchError stratalloc: torch {torch.__version__} is built "
        "without CUDA: install a build that has it, pip install")


@pytest.mark.parametrize("left_over", [False, True])
def test_bridge_with_a_changed_byte_is_one_line(tmp_path, site, left_over):
    """Also where an interrupted upgrade left the RECORD of another version."""
    if left_over:
        other = site / "stratalloc-99.0.dist-info"
        other.mkdir()
        (other / "RECORD").touch()
    wanted = _change_a_byte(site)
    said = _said(tmp_path, PYTHONPATH=_path_of(site))
    assert said == f"LibraryError {wanted}"


def test_record_that_is_no_text_is_one_line(tmp_path, site):
    (record,) = site.glob("stratalloc-*.dist-info/RECORD")
    record.write_bytes(record.read_bytes() + b"\xff\n")
    said = _said(tmp_path, PYTHONPATH=_path_of(site))
    assert said.startswith("LibraryError stratalloc: libstratalloc")
    assert "cannot be compared with what was installed ('utf-8' codec" in said
    assert said.endswith("): install stratalloc again")


def test_bridge_that_wants_a_missing_symbol_is_one_line(tmp_path, site):
    _change(site, b"aoti_torch_abi_version\0", b"aoti_torch_abi_versioX\0")
    _forget_digests(site)
    said = _said(tmp_path, PYTHONPATH=_path_of(site))
    assert said.startswith("UnsupportedTorchError stratalloc: the bridge for")
    assert "undefined symbol: aoti_torch_abi_versioX" in said
    assert "; install stratalloc again, or PyTorch's own build" in said


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


def test_run_with_a_core_that_does_not_load_is_one_line(tmp_path, site):
    _change(site, b"\0_ZSt9terminatev\0", b"\0_ZSt9terminateX\0",
            "libstratalloc.so")
    _forget_digests(site)
    program = tmp_path / "program.py"
    program.write_text("print('it ran')")
    done = running.python(
        "-m", "stratalloc", "run", "--simulate", "64MiB", program,
        fresh=True, PYTHONPATH=_path_of(site))
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("stratalloc: the core does not load: ")
    assert "undefined symbol: _ZSt9terminateX" in line
    assert line.endswith("; install stratalloc again")


def test_doctor_names_a_damaged_bridge(site):
    wanted = _change_a_byte(site)
    done = running.python("-m", "stratalloc", "doctor", fresh=True,
                          PYTHONPATH=_path_of(site))
    assert (done.returncode, done.stderr) == (3, "")
    (line,) = [line for line in done.stdout.splitlines()
               if line.split()[1] == "torch"]
    assert line.split(maxsplit=2) == ["problem", "torch", wanted]


def test_demo_names_a_damaged_bridge_before_it_begins(site):
    wanted = _change_a_byte(site)
    done = running.python("-m", "stratalloc", "demo", "--device",
                          running.DEVICE, fresh=True, PYTHONPATH=_path_of(site))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == wanted + "\n"


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
