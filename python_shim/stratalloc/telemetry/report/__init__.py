# SPDX-License-Identifier: Apache-2.0
"""A run as one page for a browser: data.py says what it shows, page.py makes
the file."""
