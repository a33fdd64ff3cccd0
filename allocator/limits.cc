// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: how much memory it may have.
#include "allocator/device_allocator.h"

namespace stratalloc {

Bytes DeviceAllocator::limit() {
  MutexLock lock(mutex_);
  return limit_.Now();
}

Bytes DeviceAllocator::most() {
  MutexLock lock(mutex_);
  return limit_.Most();
}

void DeviceAllocator::FollowCard() {
  MutexLock lock(mutex_);
  if (limit_.Follow(pages_.TakeRefused(), pages_.ours())) pressure_at_ = 0;
}

bool DeviceAllocator::RaiseLimit() {
  MutexLock lock(mutex_);
  bool raised = false;
  if (limit_.Raise(pages_.ours(), &raised)) pressure_at_ = 0;
  return raised;
}

bool DeviceAllocator::CouldHold(Bytes bytes) {
  MutexLock lock(mutex_);
  return CouldHoldLocked(bytes);
}

bool DeviceAllocator::CouldHoldLocked(Bytes bytes) {
  bool fits = false;
  if (limit_.CouldHold(bytes, pages_.ours(), &fits)) pressure_at_ = 0;
  return fits;
}

double DeviceAllocator::fraction() {
  MutexLock lock(mutex_);
  return limit_.fraction();
}

void DeviceAllocator::SetFraction(double fraction) {
  const bool fell = [&] {
    MutexLock lock(mutex_);
    limit_.SetFraction(fraction);
    pressure_at_ = 0;  // a share of the limit: the next malloc asks
    slow_.Set(SlowReason::kCollection, plain_.CollectsOld());
    return AllocatedLocked() > limit_.Now();
  }();
  if (fell && reclaimer_ != nullptr) reclaimer_->NotePressure(device_.index());
}

}  // namespace stratalloc
