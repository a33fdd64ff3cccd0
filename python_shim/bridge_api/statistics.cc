// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/statistics.h"

#include "python_shim/core/core.h"

namespace stratalloc::core {

Result<DeviceStats> Stats(int device) {
  STRATALLOC_RETURN_IF_ERROR(Core::Get().Opened(device));
  return Allocator::Get().Stats(static_cast<DeviceIndex>(device));
}

Status ResetPeakStats(int device) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  if (allocator != nullptr) allocator->ResetPeakStats();
  return {};
}

Status ResetAccumulatedStats(int device) {
  STRATALLOC_RETURN_IF_ERROR(Core::Get().Opened(device));
  Allocator::Get().ResetAccumulatedStats(static_cast<DeviceIndex>(device));
  return {};
}

std::vector<SegmentView> Snapshot(int device) {
  DeviceAllocator* const allocator =
      Allocator::Get().Find(static_cast<DeviceIndex>(device));
  if (allocator == nullptr) return {};
  return allocator->Snapshot();
}

}  // namespace stratalloc::core
