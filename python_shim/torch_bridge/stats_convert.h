// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_STATS_CONVERT_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_STATS_CONVERT_H_

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <vector>

#include "python_shim/c_api.h"

namespace stratalloc {

// The core's plain C figures as torch's structures. Torch's structures have no
// default for several fields and Python shows whatever they hold, so each
// function here fills every field.

c10::CachingDeviceAllocator::DeviceStats ToDeviceStats(
    const stratalloc_device_stats& stats);

// Torch's own options, as they are now (they may change at run time).
c10::cuda::CUDACachingAllocator::AllocatorConfigInfo CurrentConfigInfo();

// Every mapped range of every device with its blocks; of one private pool if
// `pool` is not {0, 0}. Throws c10::Error when the core cannot tell.
std::vector<c10::CachingDeviceAllocator::SegmentInfo> CollectSegments(
    c10::MempoolId_t pool);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_STATS_CONVERT_H_
