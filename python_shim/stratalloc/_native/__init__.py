# SPDX-License-Identifier: Apache-2.0
"""The shared objects' ctypes faces and extensions, and what of torch and of
this process is known without the rest of the package.
"""
