// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/stats_convert.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include "allocator/values/views.h"
#include "python_shim/bridge_api/setup.h"
#include "python_shim/bridge_api/statistics.h"
#include "python_shim/torch_bridge/base/conversions.h"

namespace stratalloc {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::AllocatorConfigInfo;
using c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

c10::CachingAllocator::Stat ToTorch(const Stat& from) {
  c10::CachingAllocator::Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

c10::CachingAllocator::StatArray ToTorch(const StatArray& from) {
  return {ToTorch(from.stats[0]), ToTorch(from.stats[1]),
          ToTorch(from.stats[2])};
}

BlockInfo ToTorch(const BlockView& from) {
  BlockInfo block;
  block.size = from.bytes;
  block.requested_size = from.requested;
  block.allocated = from.state == BlockState::kAllocated;
  block.active = IsLive(from.state);  // if not allocated it waits for events
  block.context_when_allocated = ToContext(from.context);
  return block;
}

SegmentInfo ToTorch(const SegmentView& from, int device) {
  SegmentInfo segment;
  segment.device = static_cast<c10::DeviceIndex>(device);
  segment.address = from.address;
  segment.total_size = from.bytes;
  segment.requested_size = segment.allocated_size = segment.active_size = 0;
  segment.stream = ToStream(from.stream);
  segment.is_large = from.kind == PoolKind::kLarge;
  // Ours grow by handles, as torch's expandable ones: viewers join neighbours.
  segment.is_expandable = !from.unmanaged;
  segment.owner_private_pool_id = {from.owner.graph, from.owner.user};
  segment.context_when_allocated = ToContext(from.context);
  segment.blocks.reserve(from.blocks.size());
  for (const BlockView& block : from.blocks) {
    segment.blocks.push_back(ToTorch(block));
    if (!IsLive(block.state)) continue;
    segment.active_size += block.bytes;
    segment.requested_size += block.requested;
    if (block.state == BlockState::kAllocated) {
      segment.allocated_size += block.bytes;
    }
  }
  return segment;
}

}  // namespace

c10::CachingDeviceAllocator::DeviceStats ToTorch(const DeviceStats& from) {
  c10::CachingDeviceAllocator::DeviceStats to;
  to.allocation = ToTorch(from.allocation);
  to.segment = ToTorch(from.segment);
  to.active = ToTorch(from.active);
  to.inactive_split = ToTorch(from.inactive_split);
  to.allocated_bytes = ToTorch(from.allocated_bytes);
  to.reserved_bytes = ToTorch(from.reserved_bytes);
  to.active_bytes = ToTorch(from.active_bytes);
  to.inactive_split_bytes = ToTorch(from.inactive_split_bytes);
  to.requested_bytes = ToTorch(from.requested_bytes);
  to.num_alloc_retries = from.num_alloc_retries;
  to.num_ooms = from.num_ooms;
  to.oversize_allocations = ToTorch(from.oversize_allocations);
  to.oversize_segments = ToTorch(from.oversize_segments);
  to.num_sync_all_streams = from.num_sync_all_streams;
  to.num_device_alloc = from.num_device_alloc;
  to.num_device_free = from.num_device_free;
#if TORCH_MINOR >= 12
  to.num_oom_rejections = from.num_oom_rejections;
#endif
#if TORCH_MINOR >= 13
  for (const auto& [pool, reserved] : from.reserved_by_private_pools) {
    to.reserved_bytes_by_private_pools[{pool.graph, pool.user}] =
        ToTorch(reserved);
  }
#endif
  // Unlimited is SIZE_MAX in the option and -1 in the statistics.
  to.max_split_size =
      static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
  return to;
}

AllocatorConfigInfo CurrentConfigInfo() {
  AllocatorConfigInfo info;
  info.garbage_collection_threshold =
      AcceleratorAllocatorConfig::garbage_collection_threshold();
  info.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  info.pinned_num_register_threads =
      CUDAAllocatorConfig::pinned_num_register_threads();
  info.expandable_segments =
      AcceleratorAllocatorConfig::use_expandable_segments();
  info.release_lock_on_malloc =
      CUDAAllocatorConfig::release_lock_on_cudamalloc();
  info.pinned_use_host_register =
      CUDAAllocatorConfig::pinned_use_cuda_host_register();
  info.graph_capture_record_stream_reuse =
      CUDAAllocatorConfig::graph_capture_record_stream_reuse();
  info.last_allocator_settings =
      AcceleratorAllocatorConfig::last_allocator_settings();
  info.roundup_power2_divisions =
      AcceleratorAllocatorConfig::roundup_power2_divisions();
#if TORCH_MINOR >= 13
  info.max_round_threshold =
      AcceleratorAllocatorConfig::pinned_max_round_threshold();
  info.max_cached_size = AcceleratorAllocatorConfig::pinned_max_cached_size();
#endif
  return info;
}

std::vector<SegmentInfo> CollectSegments(c10::MempoolId_t pool) {
  std::vector<SegmentInfo> segments;
  const PoolId wanted = ToPoolId(pool);
  for (int device = 0; device < core::DeviceCount(); ++device) {
    for (const SegmentView& segment : core::Snapshot(device)) {
      if (wanted.is_private() && segment.owner != wanted) continue;
      segments.push_back(ToTorch(segment, device));
    }
  }
  return segments;
}

}  // namespace stratalloc
