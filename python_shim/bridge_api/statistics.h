// SPDX-License-Identifier: Apache-2.0
// Statistics and snapshots. A device that is not opened has zeros and nothing
// to show. For threads and failure see setup.h; each takes the device lock.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_STATISTICS_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_STATISTICS_H_

#include <vector>

#include "allocator/base/export.h"
#include "allocator/base/result.h"
#include "allocator/values/stats.h"
#include "allocator/values/views.h"

namespace stratalloc::core {

// kInvalidArgument for a device that CUDA does not have.
STRATALLOC_API Result<DeviceStats> Stats(int device);
STRATALLOC_API Status ResetPeakStats(int device);  // and the ledger's
STRATALLOC_API Status ResetAccumulatedStats(int device);

// Each contiguous mapped range, in address order, with its blocks in order.
STRATALLOC_API std::vector<SegmentView> Snapshot(int device);

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_STATISTICS_H_
