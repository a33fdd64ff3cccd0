# SPDX-License-Identifier: Apache-2.0
"""line(): which line of a stack is the user's.

A recording of ours says it itself: a site is the user's line, or a stack that
knows it. Torch's stacks begin in its own C++; there it is the innermost line of
Python outside of this package and of libraries, as far as a path tells on a
machine where the program is not.
"""

import os

_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")


# This package, as a stack may spell it; its hooks are in every allocation's.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
_OURS = tuple(os.path.join(one, "") for one in {
    _PACKAGE, os.path.realpath(_PACKAGE)})


def line(run, site):
    """"file:line" of a site, "file function" of a frame that has no line;
    "(not known)" for none."""
    if 0 < site < len(run.sites) and run.sites[site].own:
        site = run.sites[site].own
    stack = run.stack(site)
    if not stack:
        return "(not known)"
    python = [one for one in stack if one.file.endswith(".py")]
    own = [one for one in python
           if not one.file.startswith(_OURS)
           and not any(part in one.file for part in _LIBRARIES)]
    found = (own or python or stack)[0]
    if found.line:
        return f"{found.file}:{found.line}"
    return f"{found.file} {found.function}".strip() or "(not known)"
