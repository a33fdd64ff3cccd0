# SPDX-License-Identifier: Apache-2.0
"""Errors that more than one module raises."""


class NotEnabledError(RuntimeError):
    """stratalloc is not the CUDA allocator of this process."""


class UnsupportedTorchError(RuntimeError):
    """This torch has no bridge in this installation."""
