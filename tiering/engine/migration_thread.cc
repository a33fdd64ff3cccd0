// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/migration_thread.h"

#include <pthread.h>

#include <utility>

namespace stratalloc {

MigrationThread::MigrationThread(std::function<void(int)> relieve,
                                 std::function<void(std::uint64_t)> prefetch)
    : relieve_(std::move(relieve)),
      prefetch_(std::move(prefetch)),
      worker_([this] { Run(); }) {}

MigrationThread::~MigrationThread() { Stop(); }

void MigrationThread::Stop() {
  if (!worker_.joinable()) return;
  stop_.store(true);
  asked_.fetch_add(1);
  asked_.notify_one();
  worker_.join();
}

void MigrationThread::AskRelief(int device) {
  relief_.fetch_or(std::uint32_t{1} << device);
  asked_.fetch_add(1);
  asked_.notify_one();
}

void MigrationThread::AskPrefetch(std::uint64_t step) {
  step_.store(step);
  asked_.fetch_add(1);
  asked_.notify_one();
}

void MigrationThread::Run() {
  // For top -H and debuggers; the simulated device keeps the time of threads
  // of this name apart from the program's.
  (void)pthread_setname_np(pthread_self(), "stratalloc-tier");
  while (true) {
    // Read before looking: a wish made after the look changes it, and the
    // wait below returns at once.
    const std::uint32_t seen = asked_.load();
    if (stop_.load()) return;
    const std::uint32_t devices = relief_.exchange(0);
    for (int i = 0; i < 32; ++i) {
      if (devices >> i & 1) relieve_(i);
    }
    const std::uint64_t step = step_.exchange(kNothing);
    if (step != kNothing) prefetch_(step);
    asked_.wait(seen);
  }
}

}  // namespace stratalloc
