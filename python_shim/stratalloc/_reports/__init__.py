# SPDX-License-Identifier: Apache-2.0
"""Answers about the memory of this process."""
