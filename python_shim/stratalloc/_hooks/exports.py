# SPDX-License-Identifier: Apache-2.0
"""Addresses that leave torch: their memory stays.

`install()` replaces

  torch.Tensor.data_ptr                     restored, stays for a while
  torch.Tensor.__cuda_array_interface__     stays until the storage is freed
  DLPack: torch._C._to_dlpack and _to_dlpack_versioned, which Tensor.__dlpack__
  and torch.utils.dlpack.to_dlpack call; the C exchange API of torch.Tensor
                                            stays until the storage is freed

An address that data_ptr() gave is often compared and never used, so that is
best effort: it never raises, those asked for last are kept (an eighth of each
device), and they go when somebody would be refused. `pin()` keeps what a
program launches kernels on by hand. The address of a *storage* is an identity
(torch.save, safetensors and transformers compare those of whole models): it
restores nothing.

An export raises torch.OutOfMemoryError when its bytes cannot be brought back.
"""

import torch

from stratalloc._hooks.patching import installed, passing_on
from stratalloc._native import _foreign


def _replace(hooks):
    hooks.replace(torch.Tensor, "data_ptr",
                  lambda original: _foreign.make_data_ptr(original))
    hooks.replace(torch.Tensor, "__cuda_array_interface__", _interface)
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        hooks.replace(torch._C, name, _to_dlpack)
    for module in (torch.utils.dlpack, torch):
        hooks.replace(module, "to_dlpack",
                      lambda original: torch._C._to_dlpack)
    hooks.replace(torch.Tensor, "__dlpack_c_exchange_api__",
                  _foreign.exchange_api)


install, uninstall = installed(_replace)


def _interface(original):
    def __cuda_array_interface__(self):
        # What torch refuses is refused before anything stays.
        interface = original.__get__(self)
        if isinstance(interface, dict) and "data" in interface:
            _foreign.export_address(interface["data"][0])
        return interface

    return property(passing_on(original.fget, __cuda_array_interface__),
                    doc=original.__doc__)


def _to_dlpack(original):
    def to_dlpack(*args, **kwargs):
        return _foreign.export_capsule(original(*args, **kwargs))

    return passing_on(original, to_dlpack)
