// SPDX-License-Identifier: Apache-2.0
#include "python_shim/frames/user_line.h"

#include <utility>

namespace stratalloc {

PythonFrame UsersFrame(PythonFrame from) {
  while (from && from.IsALibrarys()) {
    PythonFrame caller = from.Caller();
    if (!caller) break;
    from = std::move(caller);
  }
  return from;
}

int FindUserLine(char* text, int room) {
  const KeepError keep;
  const PythonFrame frame = UsersFrame(PythonFrame::Innermost());
  return frame ? frame.Write(text, room) : 0;
}

}  // namespace stratalloc
