// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: how much memory it may have, and has.
#include "allocator/device_allocator.h"

namespace stratalloc {

Bytes DeviceAllocator::limit() {
  MutexLock lock(p_.mutex);
  return p_.limit.Now();
}

Bytes DeviceAllocator::most() {
  MutexLock lock(p_.mutex);
  return p_.limit.Most();
}

void DeviceAllocator::FollowCard() {
  MutexLock lock(p_.mutex);
  if (p_.limit.Follow(p_.pages.TakeRefused(), p_.pages.ours()))
    p_.pressure_at = 0;
}

bool DeviceAllocator::RaiseLimit() {
  MutexLock lock(p_.mutex);
  bool raised = false;
  if (p_.limit.Raise(p_.pages.ours(), &raised)) p_.pressure_at = 0;
  return raised;
}

bool DeviceAllocator::CouldHold(Bytes bytes) {
  MutexLock lock(p_.mutex);
  return CouldHoldLocked(bytes);
}

bool DeviceAllocator::CouldHoldLocked(Bytes bytes) {
  bool fits = false;
  if (p_.limit.CouldHold(bytes, p_.pages.ours(), &fits)) p_.pressure_at = 0;
  return fits;
}

double DeviceAllocator::fraction() {
  MutexLock lock(p_.mutex);
  return p_.limit.fraction();
}

void DeviceAllocator::SetFraction(double fraction) {
  const bool fell = [&] {
    MutexLock lock(p_.mutex);
    p_.limit.SetFraction(fraction);
    p_.pressure_at = 0;  // a share of the limit: the next malloc asks
    p_.slow.Set(SlowReason::kCollection, p_.unmanaged.CollectsOld());
    return p_.live.allocated_bytes() > p_.limit.Now();
  }();
  if (fell && reclaimer_ != nullptr)
    reclaimer_->NotePressure(p_.device.index());
}

Bytes DeviceAllocator::Reserved() {
  MutexLock lock(p_.mutex);
  return static_cast<Bytes>(p_.stats.reserved_bytes.stats[0].current);
}

Bytes DeviceAllocator::Allocated() {
  MutexLock lock(p_.mutex);
  return p_.live.allocated_bytes();
}

Occupancy DeviceAllocator::Occupied() {
  MutexLock lock(p_.mutex);
  return {p_.limit.Now(), p_.live.allocated_bytes(), p_.heap.away() > 0};
}

bool DeviceAllocator::CannotFit(Bytes bytes) {
  MutexLock lock(p_.mutex);
  return CannotFitLocked(bytes);
}

std::int64_t DeviceAllocator::FreedCount() {
  MutexLock lock(p_.mutex);
  return p_.live.freed_count();
}

void DeviceAllocator::LookAtPressure() {
  MutexLock lock(p_.mutex);
  p_.pressure_at = 0;  // the next malloc asks
}

}  // namespace stratalloc
