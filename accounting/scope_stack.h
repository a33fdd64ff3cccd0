// SPDX-License-Identifier: Apache-2.0
// The thread-local stack of scopes: who is running on this thread, and so who
// pays for what it allocates. Plain integers; names are interned once in
// scope_table.h.
//
// Thread-safety: each thread sees only its own stack; no lock on push or pop.
// A new thread starts with an empty stack: it does not inherit.
// Cost: of push and pop two thirds is reading the clock (scope_times.h); plus
// the listener, if one is set (scope_benchmark.cc).
// Depth: frames beyond kMaxScopeDepth are counted but not stored, so that
// push and pop stay balanced and the innermost stored frame keeps paying.
// Lifetime: what lies below the top is made by a thread's first push and goes
// when the thread ends; of scopes it ends inside of, the listener is not told,
// but their accounts end.
// Failure: none.
#ifndef STRATALLOC_ACCOUNTING_SCOPE_STACK_H_
#define STRATALLOC_ACCOUNTING_SCOPE_STACK_H_

#include "allocator/base/ids.h"
#include "allocator/base/thread_local.h"

namespace stratalloc {

inline constexpr int kMaxScopeDepth = 256;

struct ScopeFrame {
  ScopeId scope = kRootScope;
  Category category = Category::kUnknown;
  LifetimeClass lifetime = LifetimeClass::kUnknown;
  // What it has allocated that is temporary until the frame ends
  // (allocator/state/frame_accounts.h). 0: nothing yet.
  FrameId account = 0;
  bool backward = false;  // a backward node's (node_scopes.h)
  bool module = false;    // a module's call

  // What PushScope finds out.
  bool in_backward = false;  // it, or one below it, is a backward node's
  // A module that runs inside of a backward node computes again what it did in
  // forward (a checkpoint); so does what it enters.
  bool recomputes = false;
  // Who is charged: the scope, or its recomputation (scope_table.h).
  ScopeId payer = kRootScope;
};

// Gets scopes that are entered and left; only tests listen. Called on the
// thread that pushes or pops, with no lock held and possibly with the GIL
// held. Must not throw. OnEnter comes when the frame is on top (what the
// listener waits for is the scope's own), OnLeave when it is gone. Of backward
// nodes it hears OnBackward alone, when their scope is another than that of the
// node before on this thread: a layer's nodes follow each other. Frames beyond
// kMaxScopeDepth are not told.
class ScopeListener {
 public:
  virtual ~ScopeListener() = default;
  virtual void OnEnter(ScopeId scope) = 0;
  virtual void OnLeave(ScopeId scope) = 0;
  virtual void OnBackward(ScopeId scope) = 0;
};

// One listener for the process; nullptr removes it. Scopes that are open at
// that moment give an OnLeave without an OnEnter (or the reverse), and other
// threads may still be inside the old listener: it must outlive them.
void SetScopeListener(ScopeListener* listener);

// Told when a frame with an account ends, be it with its thread; on that
// thread, no lock held. One for the process; must not throw.
void SetFrameEnd(void (*end)(FrameId account));

void PushScope(const ScopeFrame& frame);
// A pop without a push is ignored and returns false.
bool PopScope();
// Pops until `depth` frames are left; none, if there are no more than that. For
// who must leave nothing behind of what it called.
void PopScopesTo(int depth);

namespace internal {
// The frame on top apart from those below it, which are 2 KiB: see
// thread_local.h. Equation: below->frames[d] was on top at depth d.
struct ScopeTop {
  ScopeFrame frame;
  int depth = 0;
  ScopeId told_backward = kRootScope;
  struct ScopesBelow* below = nullptr;  // scope_stack.cc
};
extern STRATALLOC_FAST_THREAD_LOCAL ScopeTop scope_top;
}  // namespace internal

// The frame on top, or the root frame. Valid until this thread's next push
// or pop.
inline const ScopeFrame& CurrentScope() { return internal::scope_top.frame; }
// Gives the frame on top an account. REQUIRES: a frame is pushed.
inline void SetFrameAccount(FrameId account) {
  internal::scope_top.frame.account = account;
}
// What the frame on top allocates from now on is of this category; what it has
// allocated stays as it was. REQUIRES: a frame is pushed.
inline void SetFrameCategory(Category category) {
  internal::scope_top.frame.category = category;
}
// Frames pushed and not popped, stored or not.
inline int ScopeDepth() { return internal::scope_top.depth; }

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SCOPE_STACK_H_
