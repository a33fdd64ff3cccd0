// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_stack.h"

#include <atomic>
#include <type_traits>
#include <utility>

#include "accounting/node_scopes.h"
#include "accounting/scope_table.h"
#include "accounting/scope_times.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {

struct internal::ScopesBelow {
  ScopeTimes* times = ScopeTimes::Take();
  ScopeFrame frames[kMaxScopeDepth];
};

// No constructor and no destructor: no guard on each access, and scopes work
// in thread-exit handlers, where Python still frees tensors.
static_assert(std::is_trivially_destructible_v<internal::ScopeTop>);
STRATALLOC_FAST_THREAD_LOCAL internal::ScopeTop internal::scope_top;

namespace {

constinit std::atomic<ScopeListener*> listener{nullptr};
constinit std::atomic<void (*)(FrameId)> frame_end{nullptr};

void EndFrame(const ScopeFrame& frame) {
  if (__builtin_expect(frame.account == 0, 1)) return;
  if (auto* const end = frame_end.load(std::memory_order_acquire)) {
    end(frame.account);
  }
}

void Tell(internal::ScopeTop& top) {
  ScopeListener* const told = listener.load(std::memory_order_acquire);
  if (told == nullptr) return;
  const ScopeFrame& frame = top.frame;
  if (!frame.backward) return told->OnEnter(frame.scope);
  if (std::exchange(top.told_backward, frame.scope) != frame.scope) {
    told->OnBackward(frame.scope);
  }
}

// Apart: what the rings hear costs the rest no register.
[[gnu::noinline]] void RecordScope(EventKind kind, const ScopeFrame& frame) {
  Event event;
  event.kind = kind;
  event.scope = Raw(frame.scope);
  event.category = static_cast<std::uint8_t>(frame.category);
  if (frame.recomputes) event.flags |= kEventRecomputes;
  if (frame.backward) event.flags |= kEventBackward;
  EventRecorder::Record(event);
}

void EndThread(void* below) {
  internal::ScopeTop& top = internal::scope_top;
  while (top.depth > 0) {
    if (--top.depth >= kMaxScopeDepth) continue;
    EndFrame(top.frame);
    top.below->times->Leave(top.frame.payer, top.frame.backward);
    if (EventRecorder::on()) RecordScope(EventKind::kScopeLeave, top.frame);
    top.frame = top.below->frames[top.depth];
  }
  auto* const mine = static_cast<internal::ScopesBelow*>(below);
  ScopeTimes::GiveBack(mine->times);
  delete mine;
  top = {};
}

[[gnu::noinline]] internal::ScopesBelow* MakeBelow() {
  static ThreadEnd& end = *new ThreadEnd(&EndThread);
  auto* const below = new internal::ScopesBelow;
  end.Await(below);
  return below;
}

}  // namespace

void SetScopeListener(ScopeListener* new_listener) {
  // Release pairs with the acquire in push and pop: a listener is seen whole.
  listener.store(new_listener, std::memory_order_release);
}

void SetFrameEnd(void (*end)(FrameId account)) {
  frame_end.store(end, std::memory_order_release);
}

void PushScope(const ScopeFrame& frame) {
  internal::ScopeTop& top = internal::scope_top;
  const int depth = top.depth++;
  if (__builtin_expect(depth >= kMaxScopeDepth, 0)) return;
  if (__builtin_expect(top.below == nullptr, 0)) top.below = MakeBelow();
  const ScopeFrame& below = top.below->frames[depth] = top.frame;
  top.frame = frame;
  top.frame.in_backward = frame.backward || below.in_backward;
  top.frame.recomputes = below.in_backward && !frame.backward &&
                         (frame.module || below.recomputes);
  top.frame.payer = __builtin_expect(top.frame.recomputes, 0)
                        ? RecomputationOf(frame.scope)
                        : frame.scope;
  top.below->times->Enter(top.frame.payer, frame.backward, depth > 0,
                          below.payer, below.backward);
  NodeScopes::Begin(frame.scope);
  if (__builtin_expect(EventRecorder::on(), 0)) {
    RecordScope(EventKind::kScopeEnter, top.frame);
  }
  Tell(top);
}

bool PopScope() {
  internal::ScopeTop& top = internal::scope_top;
  if (__builtin_expect(top.depth == 0, 0)) return false;
  const int depth = --top.depth;
  if (__builtin_expect(depth >= kMaxScopeDepth, 0)) return true;
  const ScopeFrame left = top.frame;
  top.below->times->Leave(left.payer, left.backward);
  top.frame = top.below->frames[depth];
  NodeScopes::Begin(top.frame.scope);
  EndFrame(left);
  if (__builtin_expect(EventRecorder::on(), 0)) {
    RecordScope(EventKind::kScopeLeave, left);
  }
  if (left.backward) return true;
  ScopeListener* const told = listener.load(std::memory_order_acquire);
  if (told != nullptr) told->OnLeave(left.scope);
  return true;
}

void PopScopesTo(int depth) {
  while (ScopeDepth() > depth) PopScope();
}

}  // namespace stratalloc
