# SPDX-License-Identifier: Apache-2.0
"""Where in the program somebody was refused: the line that is told, and what is
the same place.

Whoever looks for the largest batch is refused again and again, and mostly at
other lines of the same forward. What all of these have in common is a loop that
calls them: refusals are of the same place if they came the same way to the
outermost loop that runs, or, without one, the same way to the line itself.
Frames are looked at and not kept. Never fails.
"""

import dis
import functools
import os
import sys


class Place:
    """Of this thread. `libraries`: their directories, with a separator behind.

    Attributes:
      line: "file:line function" of the innermost line of user code, as sites
        have it (extensions/frames/python_frame.h); None if no user code runs.
      path: what is the same place; () with no line.
    """

    def __init__(self, libraries):
        frames = []
        frame = sys._getframe(1)
        while frame is not None:
            if not _is_of_hook(frame):
                frames.append(frame)
            frame = frame.f_back
        users = [frame for frame in frames
                 if not _is_librarys(frame, libraries)]
        self.line = _line(users[0]) if users else None
        path = []
        # From the outermost on; who runs the program (an event loop, a test
        # runner) is none of its loops, but a library that calls it again is.
        outermost = frames.index(users[-1]) if users else -1
        for frame in reversed(frames[:outermost + 1]):
            path.append(_line(frame))
            if (frame is users[0]
                    or frame.f_lineno in _lines_in_loops(frame.f_code)):
                break
        self.path = tuple(path)


def _is_of_hook(frame):
    return frame.f_code.co_filename.startswith(_HERE)


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _line(frame):
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} {code.co_name}"


@functools.lru_cache(maxsize=256)
def _lines_in_loops(code):
    """Those between a jump back and where it leads. By lines, since what a loop
    begins with is compiled twice; and a handler's jump may span what comes
    after the loop, so that more counts as repeated than is: by then the line
    tells them apart."""
    jumps = {*dis.hasjrel, *dis.hasjabs}
    lines, seen = set(), []
    starts, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    for one in dis.get_instructions(code):
        line = starts.get(one.offset) or line
        seen.append((one.offset, line))
        if one.opcode in jumps and one.argval < one.offset:
            lines.update(each for at, each in seen if at >= one.argval)
    return frozenset(lines)


def _is_librarys(frame, libraries):
    path = frame.f_code.co_filename
    if not path.startswith("<"):
        return path.startswith(libraries)
    if path.startswith("<frozen "):
        return True
    # Code without a file is of the module that runs it.
    module = frame.f_globals.get("__file__")
    return isinstance(module, str) and module.startswith(libraries)
