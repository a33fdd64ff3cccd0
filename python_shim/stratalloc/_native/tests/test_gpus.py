# SPDX-License-Identifier: Apache-2.0
"""Whether there is a GPU, for each machine there may be."""

import ctypes
import types

import pytest

from stratalloc._native import gpus as _gpus


def _torch(devices=-1, cuda="13.0"):
    return types.SimpleNamespace(
        __version__="2.11.0", version=types.SimpleNamespace(cuda=cuda),
        cuda=types.SimpleNamespace(_device_count_nvml=lambda: devices))


def _driver(monkeypatch, loads):
    def load(name):
        assert name == "libcuda.so.1"
        if not loads:
            raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", load)


@pytest.mark.parametrize("devices", [
    1, 8,
    -1,  # no NVML (simulated, or a MIG slice): torch itself will find out
])
def test_there_may_be_some(monkeypatch, devices):
    _driver(monkeypatch, True)
    assert _gpus.why_none(_torch(devices)) is None


def test_no_driver(monkeypatch):
    _driver(monkeypatch, False)
    assert "libcuda.so.1" in _gpus.why_none(_torch())


def test_a_driver_without_devices(monkeypatch):
    _driver(monkeypatch, True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _gpus.why_none(_torch(0)) == "NVIDIA's driver shows none"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert _gpus.why_none(_torch(0)).endswith("with CUDA_VISIBLE_DEVICES='7'")
    assert not _gpus.hidden()


def test_a_torch_without_cuda(monkeypatch):
    _driver(monkeypatch, True)
    assert "without CUDA" in _gpus.why_none(_torch(cuda=None))


@pytest.mark.parametrize("value,is_hidden", [
    (None, False), ("", True), ("-1", True), ("0", False), ("0,1", False)])
def test_hidden(monkeypatch, value, is_hidden):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert _gpus.hidden() == is_hidden
