# SPDX-License-Identifier: Apache-2.0
"""How much is recorded, and recordings of a part of a program or all of it."""
