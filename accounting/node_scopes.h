// SPDX-License-Identifier: Apache-2.0
// Which scope an autograd node was made in, so that what its backward allocates
// is charged to the layer whose forward it undoes.
//
// Autograd numbers the nodes of each thread upwards. A scope that is entered or
// left notes the number that the next node will have, so that each scope owns
// intervals of numbers, and a look-up is a binary search. Forward operators pay
// nothing, and a scope in which no node was made leaves no trace.
//
// Thread-safety: any. Begin is called by the thread that enters or leaves; a
// thread that runs backward looks up another's numbers. One kFrames lock (leaf)
// per thread, taken when nodes were made since the last call and in look-ups;
// another when a look-up is of another thread's numbers than the one before.
// Bounds: the last 65536 changes of scope of a thread, the last 256 threads
// that ended, and whose numbers a thread looked up last; what is older is not
// found. Lifetime: the process's; a thread's intervals outlive it, because its
// graph may. Failure: none.
#ifndef STRATALLOC_ACCOUNTING_NODE_SCOPES_H_
#define STRATALLOC_ACCOUNTING_NODE_SCOPES_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "allocator/base/ids.h"

namespace stratalloc {

class NodeScopes {
 public:
  // Who numbers nodes: of the calling thread, the next node's number and the
  // thread's own, which is never given again.
  struct Numbers {
    std::uint64_t (*next)() = nullptr;
    std::uint64_t (*thread)() = nullptr;
  };
  // Once; nullptr: nobody does (in a forked child: a lock may be held).
  static void Use(const Numbers* numbers) {
    numbers_.store(numbers, std::memory_order_release);
  }

  // From here on this thread's nodes are of `scope`.
  static void Begin(ScopeId scope) {
    if (const Numbers* numbers = numbers_.load(std::memory_order_acquire)) {
      BeginAt(numbers->next(), scope, *numbers);
    }
  }
  // nullopt: it was never in a scope, or too long ago.
  static std::optional<ScopeId> Find(std::uint64_t thread, std::uint64_t node);

 private:
  static void BeginAt(std::uint64_t next, ScopeId scope,
                      const Numbers& numbers);

  static std::atomic<const Numbers*> numbers_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_NODE_SCOPES_H_
