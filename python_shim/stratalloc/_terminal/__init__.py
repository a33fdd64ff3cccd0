# SPDX-License-Identifier: Apache-2.0
"""How every command ends, refuses and prints."""
