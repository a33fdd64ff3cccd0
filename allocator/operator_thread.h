// SPDX-License-Identifier: Apache-2.0
// What one thread is doing inside operators: how deep, which handles it pins,
// and an epoch that lets an evictor wait until the thread has left the
// operator it was in.
//
// A pin lasts for one operator (design rule 3). It is taken by the op guard
// for arguments and by Malloc for evictable blocks that an operator allocates
// for itself, because no guard saw those as arguments.
//
// Thread-safety: ThisThread() is this thread's own; other threads read only
// `epoch` and `waiting`, through WaitForOtherOperators().
#ifndef STRATALLOC_ALLOCATOR_OPERATOR_THREAD_H_
#define STRATALLOC_ALLOCATOR_OPERATOR_THREAD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/base/thread_local.h"
#include "allocator/handle_table.h"

namespace stratalloc {

struct OperatorThread {
  // Odd while inside an outermost operator.
  std::atomic<std::uint64_t> epoch{0};
  // True while it waits for the arbiter or in the out-of-memory ladder: its
  // pins already cover everything it will use.
  std::atomic<bool> waiting{false};
  // A malloc made by an observer or callback of the ladder itself must not
  // climb the ladder again (design rule 13).
  bool in_ladder = false;

  // This thread's alone:
  std::vector<HandleEntry*> pins;
  std::vector<std::size_t> marks;  // pins.size() at each operator's entry

  // Made by a thread's first call, gone when the thread ends.
  static OperatorThread& ThisThread();
  int depth() const { return static_cast<int>(marks.size()); }

  void Enter();
  // Drops the pins of the innermost operator. Pins of nested operators are
  // dropped when they leave; blocks allocated inside stay pinned until the
  // outermost one leaves (PinForOutermost).
  void Leave();
  void Pin(HandleEntry& entry) {
    // seq_cst: see "who wins" in handle_table.h.
    entry.pins.fetch_add(1, std::memory_order_seq_cst);
    pins.push_back(&entry);
  }
  // Keeps `entry` until the outermost operator of this thread leaves.
  // REQUIRES: depth() > 0.
  void PinForOutermost(HandleEntry& entry);

 private:
  static OperatorThread& Register();

  std::vector<HandleEntry*> outermost_pins_;
};

namespace internal {
extern STRATALLOC_FAST_THREAD_LOCAL OperatorThread* operator_thread;
}  // namespace internal

inline OperatorThread& OperatorThread::ThisThread() {
  OperatorThread* const mine = internal::operator_thread;
  return __builtin_expect(mine != nullptr, 1) ? *mine : Register();
}

// Marks this thread as waiting for one scope.
class OperatorWaiting {
 public:
  OperatorWaiting() : thread_(OperatorThread::ThisThread()) {
    was_ = thread_.waiting.exchange(true, std::memory_order_seq_cst);
  }
  ~OperatorWaiting() { thread_.waiting.store(was_, std::memory_order_seq_cst); }
  OperatorWaiting(const OperatorWaiting&) = delete;
  OperatorWaiting& operator=(const OperatorWaiting&) = delete;

 private:
  OperatorThread& thread_;
  bool was_;
};

// Returns true once every other thread that is inside an operator now has
// left it, or waits itself. Gives up (false) after `limit_ns`: a thread that
// never returns may need something this one holds, and failing to evict is
// better than a deadlock. Call with no lock but the arbiter held.
bool WaitForOtherOperators(std::int64_t limit_ns);
// Is any other thread inside an operator and not waiting?
bool OtherOperatorsRunning();

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_OPERATOR_THREAD_H_
