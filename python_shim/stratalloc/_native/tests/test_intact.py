# SPDX-License-Identifier: Apache-2.0
"""Shared objects are compared with the RECORD of their installation."""

import base64
import hashlib
import shutil

import pytest

from stratalloc._native import intact


@pytest.fixture(name="package")
def _package(tmp_path):
    folder = tmp_path / "thing"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "a.so").write_bytes(b"0123456789")
    (folder / "lib" / "unrecorded.so").write_bytes(b"x")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"0123456789").digest())
    info = tmp_path / "thing-1.2.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(
        f"thing/__init__.py,sha256=abc,3\n"
        f"thing/lib/a.so,sha256={digest.decode().rstrip('=')},10\n"
        f"\"thing/lib/b,c.so\",,\nthing-1.2.dist-info/RECORD,,\n")
    return folder


def _is_damaged(package, name="a.so", version="1.2"):
    return intact.is_damaged(str(package), version,
                             str(package / "lib" / name))


def test_file_as_recorded_is_not_damaged(package):
    assert not _is_damaged(package)


@pytest.mark.parametrize("data", [b"0123456788", b"012345678", b""])
def test_file_with_a_changed_byte_is_damaged(package, data):
    (package / "lib" / "a.so").write_bytes(data)
    assert _is_damaged(package)


def test_file_without_a_digest_is_not_damaged(package):
    assert not _is_damaged(package, "unrecorded.so")
    assert list(intact.recorded(str(package), "1.2")) == ["thing/lib/a.so"]


def test_source_tree_without_record_is_not_damaged(package):
    assert intact.is_installed(str(package))
    shutil.rmtree(package.parent / "thing-1.2.dist-info")
    (package / "lib" / "a.so").write_bytes(b"built anew")
    assert not intact.is_installed(str(package))
    assert not _is_damaged(package, version=None)


def test_record_of_another_version_beside_it_decides_nothing(package):
    other = package.parent / "thing-1.3.dist-info"
    other.mkdir()
    (other / "RECORD").write_text("thing/lib/a.so,sha256=of_another,10\n")
    assert not _is_damaged(package)
    (package / "lib" / "a.so").write_bytes(b"of either")
    assert _is_damaged(package)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a,b\n" + b"x" * (1 << 18)])
def test_record_that_is_no_table_is_a_value_error(package, data):
    (package.parent / "thing-1.2.dist-info" / "RECORD").write_bytes(data)
    with pytest.raises(ValueError):
        _is_damaged(package)


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
