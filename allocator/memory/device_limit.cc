// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/device_limit.h"

namespace stratalloc {

Bytes DeviceLimit::Of(Bytes capacity, Bytes gpu_limit, double fraction) {
  const Bytes card = gpu_limit != 0 ? std::min(gpu_limit, capacity) : capacity;
  const double share = fraction * static_cast<double>(card);
  return std::min(card, static_cast<Bytes>(share));
}

bool DeviceLimit::Follow(bool refused, Bytes ours) {
  return card_.IsDue(refused) && Look(ours);
}

bool DeviceLimit::Look(Bytes ours) {
  const Result<MemoryInfo> info = device_.GetMemoryInfo();
  if (!info) return false;  // what it would have said is not known
  card_.Look(ours, info->free);
  return true;
}

bool DeviceLimit::Raise(Bytes ours, bool* raised) {
  const Bytes before = Now();
  card_.Take();
  *raised = Now() > before;
  if (*raised || before >= Allowed()) return false;
  const bool looked = Look(ours);
  card_.Take();
  *raised = Now() > before;
  return looked;
}

bool DeviceLimit::CouldHold(Bytes bytes, Bytes ours, bool* fits) {
  *fits = bytes <= Most();
  if (*fits || bytes > Allowed()) return false;
  const bool looked = Look(ours);
  *fits = bytes <= Most();
  return looked;
}

}  // namespace stratalloc
