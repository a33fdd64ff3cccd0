// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/collectives/collectives_under_way.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <atomic>
#include <iterator>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "python_shim/bridge_api/pins.h"

namespace stratalloc {
namespace {

enum class Progress { kUnderWay, kComplete, kUnknown };

// Asks an event of CUDA in most backends, which a capture of another thread
// that is not relaxed would take for a mistake of ours.
Progress ProgressOf(const Holder& work) {
  try {
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(
        cudaStreamCaptureModeRelaxed);
    auto& asked = static_cast<c10d::Work&>(*work);
    if (!asked.isCompleted()) return Progress::kUnderWay;
    // Of one that failed the kernels may still run.
    return asked.exception() ? Progress::kUnknown : Progress::kComplete;
  } catch (...) {
    // What failed is the program's to hear of, from wait().
    return Progress::kUnknown;
  }
}

// A dead Work keeps its tensors until we let go of it.
class BuryCallback final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override { return CollectivesUnderWay::Bury(); }
};

}  // namespace

std::atomic<bool> CollectivesUnderWay::holding_{false};
std::atomic<bool> CollectivesUnderWay::under_way_{false};

CollectivesUnderWay& CollectivesUnderWay::Get() {
  static auto* const all = [] {
    auto* const made = new CollectivesUnderWay;
    core::UsePinPoll(
        [] { Get().Poll(); },
        [] { return under_way_.load(std::memory_order_acquire) ? 1 : 0; });
    return made;
  }();
  return *all;
}

void CollectivesUnderWay::BuryBeforeMemoryIsTaken() {
  static const bool registered = [] {
    c10::FreeCudaMemoryCallbacksRegistry()->Register(
        "stratalloc_collectives",
        []() -> std::unique_ptr<c10::FreeMemoryCallback> {
          return std::make_unique<BuryCallback>();
        });
    return true;
  }();
  (void)registered;
}

void CollectivesUnderWay::Unpin(const CollectivePins& pins, bool unobserved) {
  if (pins.empty()) return;
  core::UnpinBlocks(pins, unobserved);
}

void CollectivesUnderWay::Add(CollectivePins pins, const Holder& work) {
  Entries entry;
  entry.push_back({WeakHolder(work), std::move(pins), {}});
  MutexLock lock(mutex_);
  entries_.splice(entries_.end(), entry);
  NoteHolding();
}

bool CollectivesUnderWay::AddToBatch(const Holder& group,
                                     CollectivePins& pins) {
  MutexLock lock(mutex_);
  for (Entry& batch : batches_) {
    if (batch.holder != WeakHolder(group)) continue;
    batch.pins.insert(batch.pins.end(), pins.begin(), pins.end());
    pins.clear();
    return true;
  }
  return false;
}

void CollectivesUnderWay::BeginCoalescing(const Holder& group) {
  // One that was never ended, because the block raised, goes on: so it does in
  // the group.
  CollectivePins none;
  if (AddToBatch(group, none)) return;
  Entries batch;
  batch.push_back({WeakHolder(group), {}, {}});
  MutexLock lock(mutex_);
  batches_.splice(batches_.end(), batch);
  NoteHolding();
}

void CollectivesUnderWay::EndCoalescing(const Holder& group,
                                        const Holder& work) {
  Entries ended;
  {
    MutexLock lock(mutex_);
    for (auto batch = batches_.begin(); batch != batches_.end(); ++batch) {
      if (batch->holder != WeakHolder(group)) continue;
      ended.splice(ended.end(), batches_, batch);
      break;
    }
  }
  if (ended.empty()) return;
  CollectivePins pins = std::move(ended.front().pins);
  if (work && !pins.empty()) {
    Add(std::move(pins), work);
  } else {
    Unpin(pins, /*unobserved=*/true);
  }
}

void CollectivesUnderWay::Poll() {
  CollectDead();
  Entries looked_at, finished;
  {
    MutexLock lock(mutex_);
    looked_at.swap(entries_);
    ++asking_;
  }
  for (auto entry = looked_at.begin(); entry != looked_at.end();) {
    const auto next = std::next(entry);
    if (Finish(*entry)) finished.splice(finished.end(), looked_at, entry);
    entry = next;
  }
  MutexLock lock(mutex_);
  --asking_;
  entries_.splice(entries_.begin(), looked_at);
  over_.splice(over_.end(), finished);
  NoteHolding();
}

void CollectivesUnderWay::PollOldest() {
  for (;;) {
    Entries oldest;
    {
      MutexLock lock(mutex_);
      if (entries_.empty()) return;
      oldest.splice(oldest.end(), entries_, entries_.begin());
      ++asking_;
    }
    const bool finished = Finish(oldest.front());
    MutexLock lock(mutex_);
    --asking_;
    // One that is over is destroyed after the lock.
    if (!finished) entries_.splice(entries_.begin(), oldest);
    NoteHolding();
    if (!finished) return;
  }
}

void CollectivesUnderWay::NoteHolding() {
  // What is being asked is in no list.
  const bool under_way = asking_ > 0 || !entries_.empty();
  under_way_.store(under_way, std::memory_order_release);
  holding_.store(under_way || !batches_.empty() || !over_.empty(),
                 std::memory_order_release);
}

void CollectivesUnderWay::LetGoOfAsked() {
  std::vector<Holder> asked;  // destroyed after the lock
  MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.asked) asked.push_back(std::move(entry.asked));
  }
}

bool CollectivesUnderWay::BuryHeld() {
  LetGoOfAsked();
  CollectDead();
  Entries over;
  {
    MutexLock lock(mutex_);
    over.swap(over_);
    NoteHolding();
  }
  return !over.empty();
}

void CollectivesUnderWay::CollectDead() {
  Entries dead;
  {
    MutexLock lock(mutex_);
    for (Entries* all : {&entries_, &batches_}) {
      for (auto entry = all->begin(); entry != all->end();) {
        const auto next = std::next(entry);
        if (entry->holder.expired()) dead.splice(dead.end(), *all, entry);
        entry = next;
      }
    }
  }
  for (Entry& entry : dead) {
    Unpin(std::exchange(entry.pins, {}), /*unobserved=*/true);
  }
  MutexLock lock(mutex_);
  over_.splice(over_.end(), dead);
  NoteHolding();
}

bool CollectivesUnderWay::Finish(Entry& entry) {
  entry.asked = entry.holder.lock();
  const Progress progress =
      entry.asked ? ProgressOf(entry.asked) : Progress::kUnknown;
  if (progress == Progress::kUnderWay) return false;
  Unpin(std::exchange(entry.pins, {}), progress == Progress::kUnknown);
  return true;
}

}  // namespace stratalloc
