# SPDX-License-Identifier: Apache-2.0
"""One line of log where accelerate's device_map put layers beside the GPU.

accelerate copies such layers to the GPU at every call, and this allocator cannot
keep them there. Attached when accelerate is imported by the program; nothing is
imported here. Once in a process.

Thread-safety: as the replaced function.
"""

import logging
from collections.abc import Mapping

from stratalloc._hooks.patching import installed, passing_on

_log = logging.getLogger("stratalloc")
_SHOWN = 3
_logged = False


def _replace(hooks):
    # By its global: transformers may have bound dispatch_model() before.
    hooks.when_imported(
        "accelerate.big_modeling", lambda module: hooks.replace(
            module, "attach_align_device_hook_on_blocks", _attach))


install, uninstall = installed(_replace)


def _attach(original):
    def attach_align_device_hook_on_blocks(module, *args, **kwargs):
        _log_once(module, *args, **kwargs)
        return original(module, *args, **kwargs)

    return passing_on(original, attach_align_device_hook_on_blocks)


def _log_once(module, execution_device=None, offload=False, *_, **__):
    global _logged
    if _logged or not isinstance(offload, Mapping):
        return
    away = [name for name, is_away in offload.items() if is_away]
    if not away or not _is_cuda(execution_device):
        return
    _logged = True
    shown = ", ".join(away[:_SHOWN]) + (", ..." if len(away) > _SHOWN else "")
    _log.warning(
        "stratalloc: device_map put %d part%s of %s on the CPU or disk (%s), "
        "and accelerate copies these at every call. Write device_map={\"\": %s} "
        "instead: stratalloc evicts and restores weights by itself.",
        len(away), "" if len(away) == 1 else "s", type(module).__name__, shown,
        _written(execution_device))


def _written(execution_device):
    """The first GPU of a map of devices, as a program writes it."""
    devices = (execution_device.values()
               if isinstance(execution_device, Mapping) else [execution_device])
    device = next(one for one in devices
                  if isinstance(one, int) or str(one).startswith("cuda"))
    return device if isinstance(device, int) else f'"{device}"'


def _is_cuda(execution_device):
    devices = (execution_device.values()
               if isinstance(execution_device, Mapping) else [execution_device])
    return any(isinstance(device, int) or str(device).startswith("cuda")
               for device in devices)
