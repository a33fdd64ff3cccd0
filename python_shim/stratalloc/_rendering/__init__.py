# SPDX-License-Identifier: Apache-2.0
"""Tables, trees, pages and pictures of what the package returns."""
