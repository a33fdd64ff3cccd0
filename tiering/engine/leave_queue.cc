// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/leave_queue.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "allocator/base/clock.h"
#include "allocator/base/planted.h"

namespace stratalloc {
namespace {

// Between two looks at several fences.
constexpr std::chrono::microseconds kFirstPause{20}, kLongestPause{1000};
constexpr std::int64_t kLookFor = 1'000'000'000;

template <typename Leaves>
Bytes BytesOf(const Leaves& leaves) {
  Bytes bytes = 0;
  for (const Leave& leave : leaves) bytes += leave.claim.handle.bytes();
  return bytes;
}

}  // namespace

class LeaveQueue::HeldCaptures {
 public:
  HeldCaptures() = default;
  HeldCaptures(const HeldCaptures&) = delete;
  HeldCaptures& operator=(const HeldCaptures&) = delete;
  ~HeldCaptures() {
    for (DeviceAllocator* device : held_) device->EndFencing();
  }
  // False if one is under way there.
  bool Hold(DeviceAllocator& device) {
    if (!device.AwaitRoutes() || !device.BeginFencing()) return false;
    held_.push_back(&device);
    return true;
  }
  bool HoldAll(const DeviceList& all, const DeviceAllocator& but) {
    return std::all_of(all.begin(), all.end(), [&](TieredDevice* one) {
      DeviceAllocator& other = *one->allocator;
      return &other == &but ||
             (!other.SomeCapture(~std::uint64_t{0}) && Hold(other));
    });
  }

 private:
  std::vector<DeviceAllocator*> held_;
};

Bytes LeaveQueue::Choose(std::span<const HandleRef> handles, Below below,
                         std::shared_ptr<LeaveTally> tally, Status* why) {
  HeldCaptures held;
  if (!held.Hold(device_)) {
    *why = Fail(ErrorCode::kUnsupported, kCapturedNow);
    return 0;
  }
  std::uint64_t users = 0;
  std::map<std::uint64_t, std::vector<Claim>> by_streams;
  std::vector<Claim> claims = device_.ChooseLeaving(handles);
  for (const Claim& claim : claims) users |= claim.streams;
  const std::uint64_t may_ask = device_.streams().MayAsk(users);
  if (device_.SomeCapture(may_ask) ||
      ((may_ask >> StreamTable::kGraphBit & 1) != 0 &&
       !held.HoldAll(all_, device_))) {
    *why = Fail(ErrorCode::kUnsupported, kCapturedNow);
    return 0;
  }
  std::map<std::uint64_t, std::shared_ptr<const Fence>> fences;
  std::vector<Leave> leaves;
  Bytes bytes = 0;
  for (const Claim& claim : claims) {
    auto& fence = fences[STRATALLOC_PLANTED(kSharedFence) ? 0 : claim.streams];
    if (fence == nullptr) {
      auto recorded = Fence::Record(all_, device_, claim.streams, may_ask);
      if (!recorded) {
        *why = tl::unexpected(recorded.error());
        continue;
      }
      fence = std::move(*recorded);
    }
    leaves.push_back({claim, below, tally, fence});
    bytes += claim.handle.bytes();
  }
  Push(std::move(leaves));
  return bytes;
}

void LeaveQueue::Push(std::vector<Leave> leaves) {
  std::vector<std::shared_ptr<const Fence>> old;  // end without the lock
  MutexLock lock(mutex_);
  for (Leave& leave : leaves) {
    const auto same =
        std::find_if(leaves_.begin(), leaves_.end(), [&](const Leave& one) {
          return one.claim.handle == leave.claim.handle;
        });
    if (same != leaves_.end()) {
      old.push_back(std::move(same->fence));
      leaves_.erase(same);
    }
    leaves_.push_back(std::move(leave));
  }
}

std::vector<Leave> LeaveQueue::TakeReady(std::size_t most, Status* failed) {
  // Without the lock: a fence asks the driver. What is chosen meanwhile waits.
  std::map<const Fence*, Result<bool>> done;
  const auto fences = Fences();  // they live as long as they are looked up
  for (const auto& fence : fences) done.emplace(fence.get(), fence->IsDone());
  std::vector<Leave> ready, dropped;
  MutexLock lock(mutex_);
  std::erase_if(leaves_, [&](Leave& leave) {
    const auto known = done.find(leave.fence.get());
    if (known == done.end()) return false;
    if (!known->second) {
      *failed = tl::unexpected(known->second.error());
      dropped.push_back(std::move(leave));  // its fence ends without the lock
      return true;
    }
    const bool goes = *known->second && ready.size() < most &&
                      (ready.empty() || ready[0].below == leave.below);
    if (goes) ready.push_back(std::move(leave));
    return goes;
  });
  in_hand_ += BytesOf(ready);
  return ready;
}

void LeaveQueue::Ended(Bytes bytes) {
  MutexLock lock(mutex_);
  in_hand_ -= bytes;
}

std::vector<std::shared_ptr<const Fence>> LeaveQueue::Fences() {
  std::vector<std::shared_ptr<const Fence>> fences;
  MutexLock lock(mutex_);
  for (const Leave& leave : leaves_) {
    if (fences.empty() || fences.back() != leave.fence) {
      fences.push_back(leave.fence);
    }
  }
  return fences;
}

bool LeaveQueue::SomeReady() {
  const auto fences = Fences();
  return std::any_of(fences.begin(), fences.end(), [](const auto& fence) {
    return fence->IsDone().value_or(true);
  });
}

Status LeaveQueue::AwaitSome() {
  const std::int64_t until = NowNs() + kLookFor;
  auto pause = kFirstPause;
  while (true) {
    const auto fences = Fences();
    if (fences.empty()) return {};
    // CUDA has no wait for any of several events: they are looked at for a
    // while. Streams that all stand still then are likely to run one kernel.
    if (fences.size() == 1 || NowNs() >= until) return fences[0]->Wait();
    for (const auto& fence : fences) {
      STRATALLOC_ASSIGN_OR_RETURN(const bool done, fence->IsDone());
      if (done) return {};
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

bool LeaveQueue::empty() {
  MutexLock lock(mutex_);
  return leaves_.empty();
}

Bytes LeaveQueue::bytes() {
  MutexLock lock(mutex_);
  return BytesOf(leaves_) + in_hand_;
}

std::set<std::uint64_t> LeaveQueue::Streams() {
  std::set<std::uint64_t> streams;
  MutexLock lock(mutex_);
  for (const Leave& leave : leaves_) streams.insert(leave.claim.streams);
  streams.erase(0);  // waits for nothing
  return streams;
}

void LeaveQueue::Clear() {
  std::deque<Leave> dropped;
  MutexLock lock(mutex_);
  dropped.swap(leaves_);
}

}  // namespace stratalloc
