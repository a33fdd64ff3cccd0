# SPDX-License-Identifier: Apache-2.0
"""The command `stratalloc`."""

from stratalloc.cli.command_line import main

__all__ = ["main"]
