# SPDX-License-Identifier: Apache-2.0
"""`python -m stratalloc` is the command `stratalloc`."""

import sys

from stratalloc.cli import main

if __name__ == "__main__":
    sys.exit(main())
