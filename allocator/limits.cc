// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: how much memory it may have, by what the program set and by
// what the card has.
#include <algorithm>

#include "allocator/device_allocator.h"

namespace stratalloc {

Bytes DeviceAllocator::LimitOf(Bytes capacity, Bytes gpu_limit,
                               double fraction) {
  const Bytes card = gpu_limit != 0 ? std::min(gpu_limit, capacity) : capacity;
  const double fraction_bytes = fraction * static_cast<double>(capacity);
  return std::min(card, static_cast<Bytes>(fraction_bytes));
}

Bytes DeviceAllocator::LimitLocked() const {
  return std::min(LimitOf(capacity_, options_.gpu_limit, fraction_),
                  card_.Room());
}

Bytes DeviceAllocator::MostLocked() const {
  return std::min(LimitOf(capacity_, options_.gpu_limit, fraction_),
                  card_.Most());
}

Bytes DeviceAllocator::limit() {
  MutexLock lock(mutex_);
  return LimitLocked();
}

Bytes DeviceAllocator::most() {
  MutexLock lock(mutex_);
  return MostLocked();
}

void DeviceAllocator::FollowCard() {
  MutexLock lock(mutex_);
  if (card_.IsDue(physical_.TakeRefused())) LookAtCardLocked();
}

void DeviceAllocator::LookAtCardLocked() {
  const Result<MemoryInfo> info = device_.GetMemoryInfo();
  if (!info) return;  // what it would have said is not known
  card_.Look(physical_.created_bytes() + PlainLocked(), info->free);
  pressure_at_ = 0;  // a share of the limit
}

bool DeviceAllocator::RaiseLimit() {
  MutexLock lock(mutex_);
  const Bytes before = LimitLocked();
  card_.Take();
  if (LimitLocked() > before) return true;
  if (before >= LimitOf(capacity_, options_.gpu_limit, fraction_)) return false;
  LookAtCardLocked();
  card_.Take();
  return LimitLocked() > before;
}

bool DeviceAllocator::CouldHold(Bytes bytes) {
  MutexLock lock(mutex_);
  return CouldHoldLocked(bytes);
}

bool DeviceAllocator::CouldHoldLocked(Bytes bytes) {
  if (bytes <= MostLocked()) return true;
  if (bytes > LimitOf(capacity_, options_.gpu_limit, fraction_)) return false;
  LookAtCardLocked();
  return bytes <= MostLocked();
}

double DeviceAllocator::fraction() {
  MutexLock lock(mutex_);
  return fraction_;
}

void DeviceAllocator::SetFraction(double fraction) {
  const bool fell = [&] {
    MutexLock lock(mutex_);
    fraction_ = fraction;
    pressure_at_ = 0;  // until the next look
    SetSlowReasonLocked(SlowReason::kCollection, CollectsOldLocked());
    return AllocatedLocked() > LimitLocked();
  }();
  if (fell && reclaimer_ != nullptr) reclaimer_->OnLimitFell(device_.index());
}

}  // namespace stratalloc
