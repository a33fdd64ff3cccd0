# SPDX-License-Identifier: Apache-2.0
"""A live process, seen from outside: served through a socket, shown by `top`."""
