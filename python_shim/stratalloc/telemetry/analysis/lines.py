# SPDX-License-Identifier: Apache-2.0
"""line(): the site of a stack, for people.

A recording of ours says it itself: a site is the user's line, or a stack that
knows it. Of torch's stacks it is the innermost line of Python outside of this
package and of libraries, as far as a path tells on a machine where the program
is not; where there is none, the innermost frame of the best kind
(frame_kinds.Kind): a node of backward, a line of a library, of torch, a function
of an extension. Of operators the outermost is named: that is what the thread called.
"""

from stratalloc.telemetry.analysis import frame_kinds
from stratalloc.telemetry.analysis.frame_kinds import Kind

NOT_KNOWN = "(not known)"


def line(run, site):
    """"file:line" of a site, the name of a frame that has no line;
    "(not known)" for none."""
    if 0 < site < len(run.sites) and run.sites[site].own:
        site = run.sites[site].own
    stack = run.stack(site)
    backward, found = False, [None] * Kind.INNER  # the frame of each kind
    for frame in stack:
        kind = frame_kinds.kind(frame.file, frame.function)
        backward = backward or frame_kinds.is_backward(frame.function)
        if kind == Kind.INNER or backward and kind >= Kind.FOREIGN:
            continue  # in backward, what is further out starts the thread
        if kind == Kind.OPERATOR:
            found[Kind.FOREIGN] = None  # it was called inside of the operator
        if kind == Kind.OPERATOR or found[kind] is None:
            found[kind] = frame
    if backward and found[Kind.OPERATOR]:
        found[Kind.TORCHS] = None  # it runs the nodes
    best = next((one for one in found if one), None)
    if best is None:
        # A recording of ours has frames of Python alone; a name may be lost.
        ours = stack and run.source == "stratalloc"
        return (f"{stack[0].file} {stack[0].function}".strip() if ours
                else "") or NOT_KNOWN
    name = frame_kinds.named(best.file, best.line, best.function)
    apart = best in (found[Kind.OPERATOR], found[Kind.GENERATED])
    return name + " (backward)" * (backward and apart)
