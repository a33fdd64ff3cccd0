// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/leaver.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"

namespace stratalloc {
namespace {

// Between two looks at streams. A page of 16 MiB takes 300 us to copy.
constexpr std::chrono::microseconds kPollEvery{20};
// Handles of one batch: few enough that the first need not wait for the last.
constexpr std::size_t kMost = 32;
static_assert(kMost <= Eviction::kMost);

}  // namespace

void Leaver::Step() {
  while (!batches_.empty() && batches_.front().eviction->IsDone()) EndFirst();
  BeginReady();
}

void Leaver::BeginReady() {
  while (batches_.size() < kBatches) {
    Status failed;
    const std::vector<Leave> leaves = queue_.TakeReady(kMost, &failed);
    if (!failed) parts_.state.NoteStopped(failed.error());
    if (leaves.empty()) break;
    const auto free = std::find(words_used_.begin(), words_used_.end(), false);
    const auto words = static_cast<std::size_t>(free - words_used_.begin());
    auto eviction =
        std::make_unique<Eviction>(parts_, parts_.state.WordsOf(words));
    Bytes bytes = 0;
    for (const Leave& leave : leaves) bytes += leave.claim.handle.bytes();
    if (!eviction->Begin(leaves)) {
      queue_.Ended(bytes);
      continue;
    }
    words_used_[words] = true;
    batches_.push_back({std::move(eviction), words, bytes});
  }
  Publish();
}

void Leaver::EndFirst() {
  Batch batch = std::move(batches_.front());
  batches_.pop_front();
  freed_ += batch.eviction->End();
  words_used_[batch.words] = false;
  queue_.Ended(batch.bytes);
  Publish();
}

void Leaver::Finish() {
  while (!batches_.empty()) EndFirst();
}

void Leaver::Stop() {
  queue_.Clear();
  Finish();
}

void Leaver::Publish() {
  MutexLock lock(mutex_);
  first_done_ = batches_.empty() ? nullptr : batches_.front().eviction->done();
  some_on_their_way_ = !batches_.empty();
}

bool Leaver::IsLeaving(HandleRef handle) const {
  return std::any_of(batches_.begin(), batches_.end(), [&](const Batch& batch) {
    return batch.eviction->Has(handle);
  });
}

bool Leaver::Await(std::int64_t most_ns) {
  std::shared_ptr<const Fence> first;
  bool some = false;
  {
    MutexLock lock(mutex_);
    first = first_done_;
    some = some_on_their_way_;
  }
  if (some) {
    // An error is the batch's, which asks again.
    if (first != nullptr) (void)first->Wait();
    return true;
  }
  const std::int64_t until = NowNs() + most_ns;
  while (!queue_.SomeReady()) {
    if (queue_.empty()) return true;
    if (NowNs() >= until) return false;
    std::this_thread::sleep_for(kPollEvery);
  }
  return true;
}

}  // namespace stratalloc
