// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core_api/statistics.h"

#include "python_shim/core.h"

namespace stratalloc::core {

Result<DeviceStats> Stats(int device) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  return allocator != nullptr ? allocator->Stats() : DeviceStats{};
}

Status ResetPeakStats(int device) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  if (allocator != nullptr) allocator->ResetPeakStats();
  return {};
}

Status ResetAccumulatedStats(int device) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  if (allocator != nullptr) allocator->ResetAccumulatedStats();
  return {};
}

std::vector<SegmentView> Snapshot(int device) {
  DeviceAllocator* const allocator =
      Allocator::Get().Find(static_cast<DeviceIndex>(device));
  if (allocator == nullptr) return {};
  return allocator->Snapshot();
}

}  // namespace stratalloc::core
