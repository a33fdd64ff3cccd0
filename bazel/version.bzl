# SPDX-License-Identifier: Apache-2.0
"""The one place that knows the version."""

VERSION = "0.1.0"
