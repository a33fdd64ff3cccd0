// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_stack.h"

#include <atomic>
#include <type_traits>

namespace stratalloc {
namespace {

struct Stack {
  int depth = 0;
  // Index 0 is the root frame, so that the top is always frames[stored].
  ScopeFrame frames[kMaxScopeDepth + 1];
};
// No constructor and no destructor: no guard on each access, and scopes work
// in thread-exit handlers, where Python still frees tensors.
static_assert(std::is_trivially_destructible_v<Stack>);
constinit thread_local Stack stack;

constinit std::atomic<ScopeListener*> listener{nullptr};

constexpr int Stored(int depth) {
  return depth < kMaxScopeDepth ? depth : kMaxScopeDepth;
}

}  // namespace

void SetScopeListener(ScopeListener* new_listener) {
  // Release pairs with the acquire in push and pop: a listener is seen whole.
  listener.store(new_listener, std::memory_order_release);
}

void PushScope(const ScopeFrame& frame) {
  Stack& s = stack;
  const int depth = ++s.depth;
  if (__builtin_expect(depth > kMaxScopeDepth, 0)) return;
  s.frames[depth] = frame;
  ScopeListener* const told = listener.load(std::memory_order_acquire);
  if (told != nullptr) told->OnEnter(frame.scope);
}

bool PopScope() {
  Stack& s = stack;
  const int depth = s.depth;
  if (__builtin_expect(depth == 0, 0)) return false;
  s.depth = depth - 1;
  if (__builtin_expect(depth > kMaxScopeDepth, 0)) return true;
  ScopeListener* const told = listener.load(std::memory_order_acquire);
  if (told != nullptr) told->OnLeave(s.frames[depth].scope);
  return true;
}

const ScopeFrame& CurrentScope() {
  const Stack& s = stack;
  return s.frames[Stored(s.depth)];
}

int ScopeDepth() { return stack.depth; }

}  // namespace stratalloc
