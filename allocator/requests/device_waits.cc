// SPDX-License-Identifier: Apache-2.0
#include "allocator/requests/device_waits.h"

#include <memory>
#include <vector>

#include "allocator/base/planted.h"

namespace stratalloc {

void DeviceWaits::Settle() {
  if (p_.captures.Some(~std::uint64_t{0})) return;
  // What fails here fails at the next call, too, and is told by that.
  (void)p_.device.SynchronizeDevice();
}

bool DeviceWaits::WaitForStreams(std::uint64_t used_streams) {
  bool fenced = true, captures = false;
  const std::uint64_t asked = p_.streams.MayAsk(used_streams);
  for (int bit = 0; bit < StreamTable::kOverflowBit; ++bit) {
    if ((asked >> bit & 1) == 0) continue;
    const StreamId stream = p_.streams.StreamOf(bit);
    if (p_.device.IsCapturing(stream)) {
      captures = true;  // and waiting for its device would spoil it
      fenced = false;
    } else if (!p_.device.SynchronizeStream(stream)) {
      fenced = false;
    }
  }
  if (!captures && (asked >> StreamTable::kOverflowBit != 0 || !fenced)) {
    fenced = !p_.captures.Some(~std::uint64_t{0}) &&
             p_.device.SynchronizeDevice().has_value();
  }
  return fenced;
}

Bytes DeviceWaits::ReleaseCached(Bytes wanted, PoolId only) {
  FreeHandles::Release release;
  {
    MutexLock lock(p_.mutex);
    if (p_.captures.UnderWay()) return 0;
    p_.blocks.Process();
    p_.arrivals.Settle();
    p_.blocks.EmptyBins();
    release = p_.free_handles.BeginRelease(wanted, only);
    if (release.is_nothing()) return 0;
    ++releasing_;
  }
  if (STRATALLOC_PLANTED(kEarlyReuse)) release.used_streams = 0;
  const bool fenced = WaitForStreams(release.used_streams);
  std::vector<std::unique_ptr<UnmanagedMemory>> gone;
  Bytes released = 0;
  {
    MutexLock lock(p_.mutex);
    released = p_.free_handles.EndRelease(release, fenced);
    gone = p_.unmanaged.TakeEmpty();
    p_.placement.ForgetPools();
  }
  gone.clear();  // cudaFree waits for the device
  MutexLock lock(p_.mutex);
  --releasing_;
  ++releases_;
  released_.NotifyAll();
  return released;
}

Bytes DeviceWaits::GiveToDriver() {
  ReleaseCached(~Bytes{0});
  MutexLock lock(p_.mutex);
  return p_.pages.ReleaseFree(p_.captures.AskStreams());
}

std::uint64_t DeviceWaits::releases() {
  p_.mutex.AssertHeld();
  return releases_;
}

void DeviceWaits::AwaitReleases() {
  p_.mutex.AssertHeld();
  while (releasing_ > 0) released_.Wait(p_.mutex);
}

Status DeviceWaits::SynchronizePendingFrees(bool counted) {
  DeferredFrees::Wait wait;
  {
    MutexLock lock(p_.mutex);
    if (p_.captures.UnderWay()) return {};  // waiting would spoil the capture
    p_.blocks.RedeemPutOff();
    if (counted) ++p_.stats.num_sync_all_streams;
    wait = p_.frees.BeginWait();
  }
  DeferredFrees::Await(p_.device, &wait);
  MutexLock lock(p_.mutex);
  for (Block* block : p_.frees.EndWait(wait)) p_.blocks.Release(block);
  p_.blocks.Process();
  return wait.status;
}

}  // namespace stratalloc
