// SPDX-License-Identifier: Apache-2.0
#include "python_shim/extensions/frames/call_stack.h"

#include <functional>
#include <unordered_map>
#include <utility>

#include "python_shim/c_api/c_api.h"
#include "python_shim/extensions/frames/user_line.h"

namespace stratalloc {
namespace {

struct Known {
  std::uint32_t number = 0;  // the core's
  bool own = false;
  bool package = false;
};

struct Key {
  PyObject* code;  // kept
  long instruction;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return std::hash<PyObject*>()(key.code) * 31 +
           static_cast<std::size_t>(key.instruction);
  }
};

using Frames = std::unordered_map<Key, Known, KeyHash>;
Frames& AllKnown() {
  static Frames& frames = *new Frames;  // mallocs come until the end
  return frames;
}

Known Interned(const PythonFrame& frame) {
  char text[1024];
  const int bytes = frame.Write(text, static_cast<int>(sizeof(text)));
  const bool own = !frame.IsALibrarys();
  return {stratalloc_stack_frame(text, bytes, own ? 1 : 0), own,
          frame.IsThisPackages()};
}

Known NumberOf(const PythonFrame& frame) {
  const Key key{frame.code(), frame.Instruction()};
  Frames& known = AllKnown();
  if (const auto found = known.find(key); found != known.end()) {
    return found->second;
  }
  const Known interned = Interned(frame);
  if (!frame.HasFile()) return interned;  // its globals' module says whose
  if (known.size() >= CallStack::kMostKnown) CallStack::Forget();
  // To let go of codes may have run Python, and put it here meanwhile.
  if (known.emplace(key, interned).second) Py_INCREF(key.code);
  return interned;
}

std::uint32_t LeftOut() {
  static constexpr char kText[] = "(frames left out)";
  return stratalloc_stack_frame(kText, sizeof(kText) - 1, 0);
}

}  // namespace

std::uint32_t CallStack::Find() {
  const KeepError keep;
  std::uint32_t numbers[kMostFrames];
  int count = 0;
  int hooks = 0;  // this package's, outermost
  bool own = false;
  PythonFrame frame = PythonFrame::Innermost();
  for (; frame && count < kMostFrames; frame = frame.Caller()) {
    const Known known = NumberOf(frame);
    numbers[count++] = known.number;
    own |= known.own;
    hooks = known.package ? hooks + 1 : 0;
  }
  std::uint32_t stack = 0;
  if (frame) {
    if (!own) {
      const Known line = NumberOf(UsersFrame(std::move(frame)));
      stack = stratalloc_stack_call(0, line.number);
      if (stack == 0) return 0;
    }
    stack = stratalloc_stack_call(stack, LeftOut());
    if (stack == 0) return 0;
  }
  if (!frame && !own) count -= hooks;  // the line would be the outermost one's
  while (count > 0) {
    stack = stratalloc_stack_call(stack, numbers[--count]);
    if (stack == 0) return 0;
  }
  return stack;
}

void CallStack::Forget() {
  // Apart first: what is let go of may look here again.
  Frames gone;
  gone.swap(AllKnown());
  for (const auto& [key, known] : gone) Py_DECREF(key.code);
}

}  // namespace stratalloc
