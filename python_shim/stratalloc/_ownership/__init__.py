# SPDX-License-Identifier: Apache-2.0
"""Owners of memory: modules, optimizers, scopes and lines of code."""
