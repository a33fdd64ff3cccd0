// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_stack.h"

#include <atomic>
#include <type_traits>

namespace stratalloc {

// No constructor and no destructor: no guard on each access, and scopes work
// in thread-exit handlers, where Python still frees tensors.
static_assert(std::is_trivially_destructible_v<internal::ScopeTop>);
STRATALLOC_FAST_THREAD_LOCAL internal::ScopeTop internal::scope_top;

namespace {

constinit std::atomic<ScopeListener*> listener{nullptr};

[[gnu::noinline]] ScopeFrame* MakeBelow() {
  static ThreadEnd& end = *new ThreadEnd([](void* below) {
    delete[] static_cast<ScopeFrame*>(below);
    internal::scope_top = {};
  });
  auto* const below = new ScopeFrame[kMaxScopeDepth];
  end.Await(below);
  return below;
}

}  // namespace

void SetScopeListener(ScopeListener* new_listener) {
  // Release pairs with the acquire in push and pop: a listener is seen whole.
  listener.store(new_listener, std::memory_order_release);
}

void PushScope(const ScopeFrame& frame) {
  internal::ScopeTop& top = internal::scope_top;
  const int depth = top.depth++;
  if (__builtin_expect(depth >= kMaxScopeDepth, 0)) return;
  if (__builtin_expect(top.below == nullptr, 0)) top.below = MakeBelow();
  top.below[depth] = top.frame;
  top.frame = frame;
  ScopeListener* const told = listener.load(std::memory_order_acquire);
  if (told != nullptr) told->OnEnter(frame.scope);
}

bool PopScope() {
  internal::ScopeTop& top = internal::scope_top;
  if (__builtin_expect(top.depth == 0, 0)) return false;
  const int depth = --top.depth;
  if (__builtin_expect(depth >= kMaxScopeDepth, 0)) return true;
  const ScopeId left = top.frame.scope;
  top.frame = top.below[depth];
  ScopeListener* const told = listener.load(std::memory_order_acquire);
  if (told != nullptr) told->OnLeave(left);
  return true;
}

}  // namespace stratalloc
