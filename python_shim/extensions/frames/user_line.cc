// SPDX-License-Identifier: Apache-2.0
#include "python_shim/extensions/frames/user_line.h"

#include <utility>

namespace stratalloc {

PythonFrame UsersFrame(PythonFrame from) {
  PythonFrame inner = from ? from.Again() : PythonFrame();
  while (from && from.IsALibrarys()) {
    PythonFrame caller = from.Caller();
    if (!caller) break;
    from = std::move(caller);
  }
  if (!from || !from.IsThisPackages()) return from;
  for (; inner; inner = inner.Caller()) {
    if (!inner.IsThisPackages()) from = inner.Again();
  }
  return from;
}

int FindUserLine(char* text, int room) {
  const KeepError keep;
  const PythonFrame frame = UsersFrame(PythonFrame::Innermost());
  if (!frame || frame.IsThisPackages()) return 0;
  const int written = frame.Write(text, room);
  return frame.IsALibrarys() ? -written : written;
}

}  // namespace stratalloc
