# SPDX-License-Identifier: Apache-2.0
"""Whether this process may find a GPU, asked without touching CUDA.

Initialising CUDA to find out would break programs that fork first: their
children could not use it any more. So the driver's library is looked for, and
the management library (NVML) asked, as torch does; both leave CUDA alone.
"""

import ctypes
import os


def why_none(torch):
    """Why torch will find no GPU here, as a clause; None if it may find one."""
    if torch.version.cuda is None:
        return f"this torch, {torch.__version__}, is built without CUDA"
    try:
        # A simulated one that is loaded already answers to this name too.
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "NVIDIA's driver, libcuda.so.1, cannot be loaded"
    if torch.cuda._device_count_nvml() != 0:
        return None  # some, or NVML cannot tell
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "NVIDIA's driver shows none" + (
        "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}")


def hidden():
    """True if the environment asks for no GPU at all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.strip() in ("", "-1")
