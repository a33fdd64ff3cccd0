// SPDX-License-Identifier: Apache-2.0
#include "allocator/operator_thread.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"

namespace stratalloc {

STRATALLOC_FAST_THREAD_LOCAL OperatorThread* internal::operator_thread =
    nullptr;

namespace {

struct ThreadList {
  Mutex mutex{LockRank::kInterner};
  std::vector<std::shared_ptr<OperatorThread>> threads;
};
ThreadList& Threads() {
  static ThreadList* list = new ThreadList;  // outlives every thread
  return *list;
}

// The other threads that are inside an operator and not waiting, with the
// epoch at which they were seen.
std::vector<std::pair<std::shared_ptr<OperatorThread>, std::uint64_t>>
OthersInside() {
  std::vector<std::pair<std::shared_ptr<OperatorThread>, std::uint64_t>> seen;
  const OperatorThread* self = &OperatorThread::ThisThread();
  MutexLock lock(Threads().mutex);
  for (const auto& thread : Threads().threads) {
    if (thread.get() == self) continue;
    const std::uint64_t epoch = thread->epoch.load(std::memory_order_seq_cst);
    if (epoch % 2 == 1 && !thread->waiting.load(std::memory_order_seq_cst)) {
      seen.emplace_back(thread, epoch);
    }
  }
  return seen;
}

}  // namespace

OperatorThread& OperatorThread::Register() {
  static ThreadEnd& end = *new ThreadEnd([](void* mine) {
    internal::operator_thread = nullptr;
    MutexLock lock(Threads().mutex);
    std::erase_if(Threads().threads,
                  [&](const auto& thread) { return thread.get() == mine; });
  });
  auto made = std::make_shared<OperatorThread>();
  end.Await(made.get());
  internal::operator_thread = made.get();
  MutexLock lock(Threads().mutex);
  Threads().threads.push_back(std::move(made));
  return *internal::operator_thread;
}

void OperatorThread::Enter() {
  if (marks.empty()) {
    // release is enough, and 6 ns less than an exchange: what an evictor must
    // not miss are the pins, and the first of them puts this store before
    // anything it protects.
    epoch.store(epoch.load(std::memory_order_relaxed) + 1,
                std::memory_order_release);
  }
  marks.push_back(pins.size());
}

void OperatorThread::Leave() {
  STRATALLOC_CHECK(!marks.empty(), "operator left without being entered");
  const std::size_t mark = marks.back();
  marks.pop_back();
  // release: what the operator noted (fence bits, dirty) is visible to an
  // evictor that sees the pin gone.
  for (std::size_t i = mark; i < pins.size(); ++i) {
    pins[i]->pins.fetch_sub(1, std::memory_order_release);
  }
  pins.resize(mark);
  if (!marks.empty()) return;
  for (HandleEntry* entry : outermost_pins_) {
    entry->pins.fetch_sub(1, std::memory_order_release);
  }
  outermost_pins_.clear();
  // release: whoever waits for it sees what the operator did. Seen late, it is
  // only waited for longer.
  epoch.store(epoch.load(std::memory_order_relaxed) + 1,
              std::memory_order_release);
}

void OperatorThread::PinForOutermost(HandleEntry& entry) {
  entry.pins.fetch_add(1, std::memory_order_seq_cst);
  outermost_pins_.push_back(&entry);
}

bool WaitForOtherOperators(std::int64_t limit_ns) {
  auto others = OthersInside();
  if (others.empty()) return true;
  const std::int64_t give_up = NowNs() + limit_ns;
  int spins = 0;
  for (auto& [thread, epoch] : others) {
    while (thread->epoch.load(std::memory_order_seq_cst) == epoch &&
           !thread->waiting.load(std::memory_order_seq_cst)) {
      if (NowNs() > give_up) return false;
      // Operators take microseconds on the host: yield first, then pause for
      // 50 us so that a long one does not cost a core.
      if (++spins < 64) {
        sched_yield();
      } else {
        const timespec pause{0, 50'000};
        nanosleep(&pause, nullptr);
      }
    }
  }
  return true;
}

bool OtherOperatorsRunning() { return !OthersInside().empty(); }

}  // namespace stratalloc
