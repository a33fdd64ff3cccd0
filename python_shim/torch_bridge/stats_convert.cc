// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/stats_convert.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include <utility>

#include "python_shim/torch_bridge/bridge_error.h"

namespace stratalloc {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::AllocatorConfigInfo;
using c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

Stat ToStat(const stratalloc_stat& from) {
  Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

StatArray ToStatArray(const stratalloc_stat (&from)[3]) {
  return {ToStat(from[0]), ToStat(from[1]), ToStat(from[2])};
}

void AddSegment(void* context, const stratalloc_segment* from) {
  SegmentInfo segment;
  segment.device = static_cast<c10::DeviceIndex>(from->device);
  segment.address = from->address;
  segment.total_size = from->total_bytes;
  segment.requested_size = from->requested_bytes;
  segment.allocated_size = from->allocated_bytes;
  segment.active_size = from->active_bytes;
  segment.stream = reinterpret_cast<void*>(from->stream);
  segment.is_large = from->is_large != 0;
  // Ours grow by handles, as torch's expandable ones: viewers join neighbours.
  segment.is_expandable = from->plain == 0;
  segment.owner_private_pool_id = {from->pool_first, from->pool_second};
  if (from->context != nullptr) {
    segment.context_when_allocated =
        *static_cast<std::shared_ptr<c10::GatheredContext>*>(from->context);
  }
  segment.blocks.reserve(from->block_count);
  static_cast<std::vector<SegmentInfo>*>(context)->push_back(
      std::move(segment));
}

void AddBlock(void* context, const stratalloc_block_info* from) {
  BlockInfo block;
  block.size = from->bytes;
  block.requested_size = from->requested_bytes;
  block.allocated = from->allocated != 0;
  block.active = from->active != 0;
  if (from->context != nullptr) {
    block.context_when_allocated =
        *static_cast<std::shared_ptr<c10::GatheredContext>*>(from->context);
  }
  static_cast<std::vector<SegmentInfo>*>(context)->back().blocks.push_back(
      std::move(block));
}

}  // namespace

DeviceStats ToDeviceStats(const stratalloc_device_stats& from) {
  DeviceStats to;
  to.allocation = ToStatArray(from.allocation);
  to.segment = ToStatArray(from.segment);
  to.active = ToStatArray(from.active);
  to.inactive_split = ToStatArray(from.inactive_split);
  to.allocated_bytes = ToStatArray(from.allocated_bytes);
  to.reserved_bytes = ToStatArray(from.reserved_bytes);
  to.active_bytes = ToStatArray(from.active_bytes);
  to.inactive_split_bytes = ToStatArray(from.inactive_split_bytes);
  to.requested_bytes = ToStatArray(from.requested_bytes);
  to.num_alloc_retries = from.num_alloc_retries;
  to.num_ooms = from.num_ooms;
  to.oversize_allocations = ToStat(from.oversize_allocations);
  to.oversize_segments = ToStat(from.oversize_segments);
  to.num_sync_all_streams = from.num_sync_all_streams;
  to.num_device_alloc = from.num_device_alloc;
  to.num_device_free = from.num_device_free;
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
  return info;
}

std::vector<SegmentInfo> CollectSegments(c10::MempoolId_t pool) {
  std::vector<SegmentInfo> segments;
  stratalloc_error error;
  if (stratalloc_snapshot(&AddSegment, &AddBlock, &segments, &error) != 0) {
    ThrowError(error);
  }
  if (pool.first != 0 || pool.second != 0) {
    std::erase_if(segments, [&](const SegmentInfo& segment) {
      return segment.owner_private_pool_id != pool;
    });
  }
  return segments;
}

}  // namespace stratalloc
