// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "allocator/base/host_time.h"

namespace stratalloc {
namespace {

constexpr int kSpins = 128;            // about 4 us of pauses
constexpr long kSleepNs = 500 * 1000;  // what a missed wake costs at most

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A model of time charges waits for this lock alone: it is held across copies
// and I/O.
bool IsTimed(LockRank rank) { return rank == LockRank::kArbiter; }

}  // namespace

void Mutex::LockSlow() {
  for (int i = 0; i < kSpins; ++i) {
    if (state_.load(std::memory_order_relaxed) == kOpen &&
        state_.exchange(kHeld, std::memory_order_acquire) == kOpen) {
      return;
    }
    Pause();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (state_.exchange(kHeld, std::memory_order_seq_cst) == kHeld) {
    const timespec limit{0, kSleepNs};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&state_),
            FUTEX_WAIT_PRIVATE, kHeld, &limit, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  if (IsTimed(rank_)) NoteWentOn(this);
}

void Mutex::Wake() {
  if (IsTimed(rank_)) NoteLetGo(this);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&state_),
          FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace stratalloc

#ifdef STRATALLOC_DEBUG
#include <string>

#include "allocator/base/check.h"

namespace stratalloc {
namespace {
// What this thread holds, in order: a lock of each rank, and the arbiters of
// all devices when tiering is switched off.
thread_local const Mutex* held[48];
thread_local int held_count = 0;
}  // namespace

void Mutex::NoteLock() {
  const int rank = static_cast<int>(rank_);
  for (int i = 0; i < held_count; ++i) {
    const int other = static_cast<int>(held[i]->rank_);
    STRATALLOC_CHECK(other < rank || (other == rank && held[i] < this),
                     "lock order: rank " + std::to_string(rank) +
                         " taken while rank " + std::to_string(other) +
                         " is held (allocator/base/lock_ranks.h)");
  }
  NoteTry();
}

void Mutex::NoteTry() { held[held_count++] = this; }

void Mutex::NoteUnlock() {
  for (int i = held_count - 1; i >= 0; --i) {
    if (held[i] != this) continue;
    for (int j = i; j + 1 < held_count; ++j) held[j] = held[j + 1];
    --held_count;
    return;
  }
}

void Mutex::CheckHeld() const {
  for (int i = 0; i < held_count; ++i) {
    if (held[i] == this) return;
  }
  STRATALLOC_CHECK(false, "a lock of rank " +
                              std::to_string(static_cast<int>(rank_)) +
                              " is not held by this thread");
}

}  // namespace stratalloc
#endif
