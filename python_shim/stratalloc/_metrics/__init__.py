# SPDX-License-Identifier: Apache-2.0
"""Metrics of this process, served and written."""
