// SPDX-License-Identifier: Apache-2.0
// The engine's background thread: one worker, two kinds of work. Only the
// newest wish of each kind is kept, so there is nothing to overflow.
//
// Thread-safety: the Ask methods from any thread, with or without the GIL;
// they never wait for the work. The destructor waits for the work in hand.
#ifndef STRATALLOC_TIERING_ENGINE_MIGRATION_THREAD_H_
#define STRATALLOC_TIERING_ENGINE_MIGRATION_THREAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "allocator/base/mutex.h"

namespace stratalloc {

class MigrationThread {
 public:
  // `relieve(device)` and `prefetch(step)` run on the worker, never together.
  MigrationThread(std::function<void(int device)> relieve,
                  std::function<void(std::uint64_t step)> prefetch);
  ~MigrationThread();

  // Finishes the work in hand and ends the worker; what is asked afterwards
  // is ignored. For the end of the process: the worker must not call CUDA
  // while its libraries are being torn down. Idempotent, one caller at a time.
  void Stop();

  void AskRelief(int device);
  void AskPrefetch(std::uint64_t step);

 private:
  void Run();

  const std::function<void(int)> relieve_;
  const std::function<void(std::uint64_t)> prefetch_;
  std::atomic<std::uint32_t> relief_{0};  // bit per device
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  std::atomic<std::uint64_t> step_{kNothing};
  std::atomic<bool> stop_{false};
  // Wakes the worker; an atomic wait needs no lock, so asking is allowed
  // under a device lock.
  std::atomic<std::uint32_t> asked_{0};
  std::thread worker_;  // last: starts when everything else is ready
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_MIGRATION_THREAD_H_
