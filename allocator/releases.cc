// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: cached memory goes back to the driver, after its streams
// were waited for without the lock.
#include <memory>
#include <utility>
#include <vector>

#include "allocator/base/planted.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

bool DeviceAllocator::WaitForStreams(std::uint64_t fence) {
  bool fenced = true, captures = false;
  const std::uint64_t asked = streams_.MayAsk(fence);
  for (int bit = 0; bit < StreamTable::kOverflowBit; ++bit) {
    if ((asked >> bit & 1) == 0) continue;
    const StreamId stream = streams_.StreamOf(bit);
    if (device_.IsCapturing(stream)) {
      captures = true;  // and waiting for its device would spoil it
      fenced = false;
    } else if (!device_.SynchronizeStream(stream)) {
      fenced = false;
    }
  }
  if (!captures && (asked >> StreamTable::kOverflowBit != 0 || !fenced)) {
    fenced = !captures_.Some(~std::uint64_t{0}) &&
             device_.SynchronizeDevice().has_value();
  }
  return fenced;
}

Bytes DeviceAllocator::ReleaseCached(Bytes wanted, PoolId only) {
  FreeHandles::Release release;
  {
    MutexLock lock(mutex_);
    if (captures_.UnderWay()) return 0;
    blocks_.Process();
    SettleArrivalsLocked();
    blocks_.EmptyBins();
    release = free_handles_.BeginRelease(wanted, only);
    if (release.is_nothing()) return 0;
    ++releasing_;
  }
  if (STRATALLOC_PLANTED(kEarlyReuse)) release.fence = 0;
  const bool fenced = WaitForStreams(release.fence);
  std::vector<std::unique_ptr<PlainMemory>> gone;
  Bytes released = 0;
  {
    MutexLock lock(mutex_);
    released = free_handles_.EndRelease(release, fenced);
    gone = plain_.TakeEmpty();
    placement_.ForgetPools();
  }
  gone.clear();  // cudaFree waits for the device
  MutexLock lock(mutex_);
  --releasing_;
  ++releases_;
  released_.NotifyAll();
  return released;
}

Status DeviceAllocator::EmptyCache() {
  {
    MutexLock lock(mutex_);
    if (captures_.UnderWay()) return {};  // the next call, after it, will
  }
  if (Status status = SynchronizePendingFrees(); !status) return status;
  GiveToDriver();
  if (reclaimer_ != nullptr) reclaimer_->OnEmptyCache(device_.index());
  return {};
}

Bytes DeviceAllocator::GiveToDriver() {
  ReleaseCached(~Bytes{0});
  MutexLock lock(mutex_);
  return pages_.ReleaseFree(captures_.AskStreams());
}

}  // namespace stratalloc
