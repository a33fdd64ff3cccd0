# SPDX-License-Identifier: Apache-2.0
"""Replacements of other people's functions, and modules that are waited for."""
