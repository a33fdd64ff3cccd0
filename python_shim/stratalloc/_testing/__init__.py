# SPDX-License-Identifier: Apache-2.0
"""Measures and budgets of the pytest plug-in."""
