# SPDX-License-Identifier: Apache-2.0
"""Memory moved between the tiers by hand, pins and rules."""
