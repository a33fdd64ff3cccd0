# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file of each format: check(path) -> [text], [] if its
readers take it as it is meant.

Files may be anybody's: whatever they hold, a check tells it, raises nothing but
MissingPackageError and OSError, and ends.
"""

from stratalloc.telemetry.checks.findings import FORMATS, check

__all__ = ["FORMATS", "check"]
