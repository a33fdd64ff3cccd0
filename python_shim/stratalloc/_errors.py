# SPDX-License-Identifier: Apache-2.0
"""Errors that more than one module raises."""


class UnsupportedTorchError(RuntimeError):
    """This torch has no bridge in this installation."""
