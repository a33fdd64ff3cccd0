// SPDX-License-Identifier: Apache-2.0
// How often each scope was entered and how long it was on top of a thread's
// stack: host time of its own, without that of scopes entered inside of it.
// Forward and backward (a node's frame) apart. What runs on the device may run
// later; a thread that waits for it waits in the scope that made it wait.
//
// Each thread counts for itself, so that entering and leaving share nothing
// with other threads; the sheet of one that ended is the next new thread's,
// counts and all, since only the sum of all sheets is ever told.
//
// Thread-safety: a sheet is written by its thread alone; All() by any. One
// kFrames lock (leaf) for the list of sheets. Lifetime: the process's.
// Bounds: as many sheets as threads at a time; in each, 16 KiB for every 512
// scopes of which it entered one. Failure: none.
#ifndef STRATALLOC_ACCOUNTING_SCOPE_TIMES_H_
#define STRATALLOC_ACCOUNTING_SCOPE_TIMES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "accounting/scope_table.h"
#include "allocator/base/ids.h"
#include "allocator/base/ticks.h"

namespace stratalloc {

struct ScopeTime {
  ScopeId scope = kRootScope;
  std::uint64_t entered = 0, ns = 0;
  std::uint64_t backward_nodes = 0, backward_ns = 0;
};

class ScopeTimes {
 public:
  ScopeTimes(const ScopeTimes&) = delete;
  ScopeTimes& operator=(const ScopeTimes&) = delete;

  // Counting or not, for the whole process; on from the start. What is open
  // when it is switched on is timed from its next change on.
  static void Count(bool on) { on_.store(on, std::memory_order_relaxed); }
  // Of every scope that was ever entered, ordered by scope; what is open now
  // up to its last change.
  static std::vector<ScopeTime> All();
  // In a forked child, where nobody may hold the list's lock for ever: no time
  // is counted any more.
  static void Abandon() {
    abandoned_.store(true, std::memory_order_relaxed);
    Count(false);
  }

  // A sheet for the calling thread, until it gives it back.
  static ScopeTimes* Take();
  static void GiveBack(ScopeTimes* sheet);

  // `scope` comes on top; `below` was, if `inside` of a scope.
  void Enter(ScopeId scope, bool backward, bool inside, ScopeId below,
             bool below_backward) {
    if (__builtin_expect(!on_.load(std::memory_order_relaxed), 0)) {
      since_ = 0;
      return;
    }
    const std::uint64_t now = NowTicks();
    if (inside) AddTo(At(below).of[below_backward].ticks, Since(now));
    AddTo(At(scope).of[backward].entered, 1);
    since_ = now;
  }
  // `scope` was on top.
  void Leave(ScopeId scope, bool backward) {
    if (__builtin_expect(!on_.load(std::memory_order_relaxed), 0)) {
      since_ = 0;
      return;
    }
    const std::uint64_t now = NowTicks();
    AddTo(At(scope).of[backward].ticks, Since(now));
    since_ = now;
  }

 private:
  using Count64 = std::atomic<std::uint64_t>;
  struct Entry {
    struct {
      Count64 ticks{0}, entered{0};
    } of[2];  // forward, backward
  };
  static constexpr std::size_t kChunk = 512;
  static constexpr std::size_t kChunks = kMostScopes / kChunk;
  using Chunk = std::array<Entry, kChunk>;
  class Sheets;

  ScopeTimes() = default;
  ~ScopeTimes();

  static void AddTo(Count64& to, std::uint64_t n) {
    to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  // 0 where nothing was timed before, and where another core's counter is
  // behind.
  std::uint64_t Since(std::uint64_t now) const {
    return since_ != 0 && since_ < now ? now - since_ : 0;
  }
  Entry& At(ScopeId scope) {
    const std::size_t index = Raw(scope) % kMostScopes;
    Chunk* chunk = chunks_[index / kChunk].load(std::memory_order_relaxed);
    if (__builtin_expect(chunk == nullptr, 0)) chunk = Make(index / kChunk);
    return (*chunk)[index % kChunk];
  }
  Chunk* Make(std::size_t index);

  static constinit std::atomic<bool> on_, abandoned_;
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  std::uint64_t since_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SCOPE_TIMES_H_
