// SPDX-License-Identifier: Apache-2.0
// A lock that knows its rank (lock_ranks.h) and that clang's thread-safety
// analysis understands. Not recursive, not fair. Debug builds abort when a
// thread takes locks out of order.
//
// Every malloc and free takes one, so it costs one atomic exchange: 6 ns for
// the pair against 11 ns of std::mutex, whose unlock is a second exchange. The
// price: Unlock looks for sleepers without a fence, so it may miss a thread
// that is just lying down. A sleeper therefore sleeps 500 us at most and looks
// for itself. A thread spins for a few microseconds, the length of most
// critical sections, before it sleeps.
#ifndef STRATALLOC_ALLOCATOR_BASE_MUTEX_H_
#define STRATALLOC_ALLOCATOR_BASE_MUTEX_H_

#include <atomic>
#include <cstdint>

#include "allocator/base/lock_ranks.h"

#if defined(__clang__)
#define STRATALLOC_TS(x) __attribute__((x))
#else
#define STRATALLOC_TS(x)
#endif
#define CAPABILITY(x) STRATALLOC_TS(capability(x))
#define SCOPED_CAPABILITY STRATALLOC_TS(scoped_lockable)
#define GUARDED_BY(x) STRATALLOC_TS(guarded_by(x))
#define REQUIRES(...) STRATALLOC_TS(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) STRATALLOC_TS(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) STRATALLOC_TS(acquire_capability(__VA_ARGS__))
#define RELEASE(...) STRATALLOC_TS(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) STRATALLOC_TS(try_acquire_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(...) STRATALLOC_TS(assert_capability(__VA_ARGS__))
#define RETURN_CAPABILITY(x) STRATALLOC_TS(lock_returned(x))

namespace stratalloc {

class CAPABILITY("mutex") Mutex {
 public:
  explicit Mutex(LockRank rank) : rank_(rank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ACQUIRE() {
    NoteLock();
    if (__builtin_expect(state_.exchange(kHeld, std::memory_order_acquire),
                         0)) {
      LockSlow();
    }
  }
  // In any order: a thread that does not wait cannot be part of a deadlock.
  bool TryLock() TRY_ACQUIRE(true) {
    if (state_.exchange(kHeld, std::memory_order_acquire) == kHeld) {
      return false;
    }
    NoteTry();
    return true;
  }
  void Unlock() RELEASE() {
    NoteUnlock();
    state_.store(kOpen, std::memory_order_release);
    if (__builtin_expect(sleepers_.load(std::memory_order_relaxed), 0)) Wake();
  }

  // For a lambda that runs under the lock: the analysis does not follow a
  // caller's locks into it. Debug builds abort if this thread has it not.
  void AssertHeld() const ASSERT_CAPABILITY() { CheckHeld(); }

  // The lower-case names let std::condition_variable_any wait on it.
  void lock() ACQUIRE() { Lock(); }
  void unlock() RELEASE() { Unlock(); }

 private:
#ifdef STRATALLOC_DEBUG
  void NoteLock();
  void NoteTry();
  void NoteUnlock();
  void CheckHeld() const;
#else
  void NoteLock() {}
  void NoteTry() {}
  void NoteUnlock() {}
  void CheckHeld() const {}
#endif

  static constexpr std::uint32_t kOpen = 0, kHeld = 1;
  void LockSlow();
  void Wake();

  std::atomic<std::uint32_t> state_{kOpen};
  std::atomic<std::uint32_t> sleepers_{0};
  [[maybe_unused]] const LockRank rank_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_MUTEX_H_
