# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file of each format: check(path) -> [text], [] if its
readers take it as it is meant; formats.py says which is whose.

Files may be anybody's: whatever they hold, a check tells it, and ends. What is
no regular file is a TelemetryError, what cannot be read an OSError; besides
these there is only MissingPackageError.
"""

