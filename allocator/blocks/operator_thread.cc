// SPDX-License-Identifier: Apache-2.0
#include "allocator/blocks/operator_thread.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/mutex.h"
#include "allocator/base/planted.h"

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

// Takes back the pins from number `from` on. release: what the operator noted
// (used streams, dirty) is visible to an evictor that sees the pin gone.
void Drop(std::vector<HandleUse*>& pins, std::size_t from) {
  for (std::size_t i = from; i < pins.size(); ++i) {
    pins[i]->pins.fetch_sub(1, std::memory_order_release);
  }
  pins.resize(from);
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
  Drop(pins, mark);
  if (!marks.empty()) return;
  if (!held_marks_.empty()) {
    made_.insert(made_.end(), outermost_pins_.begin(), outermost_pins_.end());
  } else {
    Drop(outermost_pins_, 0);
  }
  outermost_pins_.clear();
  ticket = 0;
  // Left by a wait that ended in an error.
  if (!noted_.empty()) noted_.clear();
  // release: whoever waits for it sees what the operator did. Seen late, it is
  // only waited for longer.
  epoch.store(epoch.load(std::memory_order_relaxed) + 1,
              std::memory_order_release);
}

void OperatorThread::LeaveIntoCall() {
  STRATALLOC_CHECK(!marks.empty(), "operator left without being entered");
  const auto own = pins.begin() + static_cast<std::ptrdiff_t>(marks.back());
  calls.store(
      calls.load(std::memory_order_relaxed) + (held_marks_.empty() ? 1 : 2),
      std::memory_order_release);
  held_marks_.push_back(held_.size());
  held_.insert(held_.end(), own, pins.end());
  pins.erase(own, pins.end());
  Leave();
}

void OperatorThread::LeaveCall() {
  STRATALLOC_CHECK(!held_marks_.empty(), "call left without being entered");
  const std::size_t mark = held_marks_.back();
  held_marks_.pop_back();
  Drop(held_, mark);
  if (held_marks_.empty()) Drop(made_, 0);
  if (!noted_.empty() && !HoldsPins()) noted_.clear();
  calls.store(
      calls.load(std::memory_order_relaxed) + (held_marks_.empty() ? 1 : 2),
      std::memory_order_release);
}

void OperatorThread::PinForOutermost(HandleUse& use) {
  use.pins.fetch_add(1, std::memory_order_seq_cst);
  (marks.empty() ? made_ : outermost_pins_).push_back(&use);
}

void OperatorThread::DropPins(std::size_t n) {
  STRATALLOC_CHECK(n <= pins.size(), "more pins dropped than taken");
  Drop(pins, pins.size() - n);
}

void OperatorThread::Suspend() {
  if (!noted_.empty()) {
    // Between Resume and NoteAgain: what was noted first is what holds.
    for (Noted& noted : noted_) {
      noted.use->pins.fetch_sub(1, std::memory_order_release);
    }
  } else {
    ForEachPin([&](HandleUse& use) {
      noted_.push_back({&use, use.used_streams.load(), use.dirty.load()});
      use.pins.fetch_sub(1, std::memory_order_release);
    });
  }
  suspended.store(true, std::memory_order_seq_cst);
}

void OperatorThread::Resume() {
  suspended.store(false, std::memory_order_seq_cst);
  ForEachPin(
      [](HandleUse& use) { use.pins.fetch_add(1, std::memory_order_seq_cst); });
}

void OperatorThread::NoteAgain() {
  if (STRATALLOC_PLANTED(kNotNoted)) noted_.clear();
  for (const Noted& noted : noted_) {
    noted.use->NoteUnseen(noted.used_streams);
    if (noted.dirty) noted.use->dirty.store(true);
  }
  noted_.clear();
}

OtherThreads LookAtOthers() {
  OtherThreads seen;
  const OperatorThread* self = internal::operator_thread;
  MutexLock lock(Threads().mutex);
  for (const auto& thread : Threads().threads) {
    const std::uint64_t epoch = thread->epoch.load(std::memory_order_seq_cst);
    // This thread's too: all who look see the same number.
    const std::uint64_t calls = thread->calls.load(std::memory_order_seq_cst);
    seen.progress += epoch + calls;
    if (thread.get() == self) continue;
    seen.any |= epoch != 0;
    seen.inside |= (epoch % 2 == 1 || calls % 2 == 1) &&
                   !thread->suspended.load(std::memory_order_seq_cst);
  }
  return seen;
}

}  // namespace stratalloc
