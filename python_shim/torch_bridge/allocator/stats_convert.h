// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_STATS_CONVERT_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_STATS_CONVERT_H_

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <vector>

#include "allocator/values/stats.h"
#include "allocator/values/trace_event.h"

namespace stratalloc {

// The core's figures as torch's structures. Torch's structures have no default
// for several fields and Python shows whatever they hold, so each function here
// fills every field.

c10::CachingDeviceAllocator::DeviceStats ToTorch(const DeviceStats& stats);

// What torch's recorder gathered and the core kept (SetHistoryContext).
inline std::shared_ptr<c10::GatheredContext> ToContext(
    const HistoryContext& context) {
  return std::static_pointer_cast<c10::GatheredContext>(context);
}

// Torch's own options, as they are now (they may change at run time).
c10::cuda::CUDACachingAllocator::AllocatorConfigInfo CurrentConfigInfo();

// Every mapped range of every device with its blocks; of one private pool if
// `pool` is not {0, 0}.
std::vector<c10::CachingDeviceAllocator::SegmentInfo> CollectSegments(
    c10::MempoolId_t pool);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_STATS_CONVERT_H_
