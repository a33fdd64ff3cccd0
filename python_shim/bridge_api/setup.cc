// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/setup.h"

#include "allocator/state/settings.h"
#include "allocator/state/workspaces.h"
#include "python_shim/core/core.h"

namespace stratalloc::core {

Status Init(int device_count) { return Core::Get().Init(device_count); }
bool IsInitialized() { return Core::Get().initialized(); }
int DeviceCount() { return Allocator::Get().device_count(); }

void UseSettings(const TorchSettings& settings) {
  Settings& s = Settings::Get();
  s.UseDivisions(settings.divisions);
  s.UseMaxSplitSize(settings.max_split_size);
  s.UseMaxNonSplitRounding(settings.max_non_split_rounding);
  s.UseLargeSegmentSize(settings.large_segment_size);
  s.UseCollectionThreshold(settings.collection_threshold);
  s.UseUnmanagedSegments(settings.unmanaged_segments);
  s.UseRejectionShare(settings.rejection_share);
  s.UseFreeMemory(settings.free_memory);
  s.UseShareVersion(settings.share_version);
}

void UseWorkspaces(int (*list)(void (*each)(void* context, void* address),
                               void* context)) {
  LibraryWorkspaces::Use(list);
}

}  // namespace stratalloc::core
