# SPDX-License-Identifier: Apache-2.0
"""Versions of torch that bridges are built for, as text.

The build backend (python_shim/wheel) loads this file by its path: standard
library only, nothing of this package.
"""

import re

# A release of PyTorch. A pre-release or a vendor's build before one has the
# number of a minor, and may have classes of other sizes.
_RELEASE = re.compile(r"(\d+)\.(\d+)\.\d+(\.post\d+)?(\+[0-9A-Za-z.]+)?")


def minor_of(version: str) -> str:
    """"2.11" for the release 2.11.0+cu130; "" for what is not a release."""
    match = _RELEASE.fullmatch(version)
    return ".".join(match.group(1, 2)) if match else ""


def requirement(minors: list[str]) -> str:
    """What pip is asked for, in a shell's quotes: any torch of these minors.

    A range, of which pip takes the newest release that this Python can have.
    Any torch where there are none.
    """
    served = sorted(tuple(map(int, minor.split("."))) for minor in minors)
    if not served:
        return "torch"
    major, last = served[-1]
    known = {minor for of, minor in served if of == major}
    first = min(known)
    gaps = "".join(f",!={major}.{minor}.*" for minor in range(first, last)
                   if minor not in known)
    return f'"torch>={major}.{first},<{major}.{last + 1}{gaps}"'


def reinstallation(minors: list[str]) -> str:
    """The command for a torch whose version alone would satisfy pip."""
    return f"pip install --force-reinstall {requirement(minors)}"


def not_a_release(version: str) -> str:
    """Begin of the refusal of a torch that minor_of() knows no minor of."""
    return (f"stratalloc: torch {version} is not a release, and bridges are "
            "built for releases only")
