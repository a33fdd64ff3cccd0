// SPDX-License-Identifier: Apache-2.0
// The line of user code that a thread runs: of the frames on its stack the
// innermost whose code lies outside libraries (python_frame.h); if all lie in
// one, the outermost that is not this package's, else the outermost.
//
// The GIL is held. Nothing raises, and an exception that was set before is set
// afterwards. Keeps nothing.
#ifndef STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_USER_LINE_H_
#define STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_USER_LINE_H_

#include "python_shim/extensions/frames/python_frame.h"

namespace stratalloc {

// From this frame outwards; none of none.
PythonFrame UsersFrame(PythonFrame from);

// Writes "file:line function" of the calling thread, `room` bytes with its end
// at most; returns its length, 0 if the thread has no frame but this
// package's. Negative: all frames lie in a library: the line is not the user's.
int FindUserLine(char* text, int room);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_USER_LINE_H_
