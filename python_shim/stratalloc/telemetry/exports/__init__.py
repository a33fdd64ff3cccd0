# SPDX-License-Identifier: Apache-2.0
"""What writes a Run for other tools: one module per format, write(run, path).

Files are the user's alone (0600), whole or not there: written beside the target
and renamed. Names stay names, whatever is in them; what no text can hold (half
of a surrogate pair) is written as Python's escape of it. Each module says what
it needs besides the standard library and numpy; what is missing is a
MissingPackageError.
"""
