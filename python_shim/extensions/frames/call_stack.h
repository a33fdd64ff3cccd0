// SPDX-License-Identifier: Apache-2.0
// The stack that a thread runs, as a number of the core's (c_api.h,
// stratalloc_stack_call): the innermost kMostFrames frames, whosever they are.
// Of a deeper stack the rest is one frame, "(frames left out)", and before it
// the innermost of the user's that was left out, or the outermost frame, so
// that a stack always has the line that user_line.h finds.
//
// A frame is known again by its code and where in it: the code is kept
// meanwhile, or its address might be another's. Bounded by kMostKnown,
// forgotten together.
//
// The GIL is held. Nothing raises, and an exception that was set before is set
// afterwards. Cost: README.md.
#ifndef STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_CALL_STACK_H_
#define STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_CALL_STACK_H_

#include <cstddef>
#include <cstdint>

namespace stratalloc {

class CallStack {
 public:
  static constexpr int kMostFrames = 64;
  static constexpr std::size_t kMostKnown = 16384;

  // 0 if the thread has no frame, or no number is left.
  static std::uint32_t Find();
  // What is a library has changed.
  static void Forget();
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_CALL_STACK_H_
