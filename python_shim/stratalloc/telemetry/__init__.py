# SPDX-License-Identifier: Apache-2.0
"""A run that was recorded: its model, what reads it and what writes it.

Needs numpy; what a format needs besides is said by who writes it. Nothing here
imports torch: a recording opens on a machine that has none.
"""
