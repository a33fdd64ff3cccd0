// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/torch_allocator.h"

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <string>
#include <string_view>

#include "python_shim/c_api.h"
#include "python_shim/torch_bridge/bridge_error.h"
#include "python_shim/torch_bridge/collectives_under_way.h"
#include "python_shim/torch_bridge/conversions.h"
#include "python_shim/torch_bridge/gpu_trace.h"
#include "python_shim/torch_bridge/library_workspaces.h"
#include "python_shim/torch_bridge/lifetime_hint.h"
#include "python_shim/torch_bridge/stats_convert.h"
#include "python_shim/torch_bridge/torch_history.h"

namespace stratalloc {

namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;
using c10::cuda::CUDACachingAllocator::AllocatorConfigInfo;
using c10::cuda::CUDACachingAllocator::CheckpointDelta;
using c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
using c10::cuda::CUDACachingAllocator::ShareableHandle;
using c10::cuda::CUDACachingAllocator::StreamSegmentSize;

// These structures cross the boundary by value and no loader checks them. The
// first four tell torch's minors 2.11 to 2.15 apart.
static_assert(TORCH_MINOR == 11);
static_assert(sizeof(DeviceStats) == 976);
static_assert(sizeof(TraceEntry) == 136);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::SnapshotInfo) == 160);
static_assert(sizeof(AllocatorConfigInfo) == 88);
static_assert(sizeof(c10::CachingAllocator::Stat) == 32);
static_assert(sizeof(c10::CachingAllocator::StatArray) == 96);
static_assert(sizeof(c10::CachingDeviceAllocator::BlockInfo) == 40);
static_assert(sizeof(SegmentInfo) == 120);
static_assert(sizeof(c10::CachingDeviceAllocator::AnnotationEntry) == 72);
static_assert(sizeof(CheckpointDelta) == 48);
static_assert(sizeof(ShareableHandle) == 40);
static_assert(sizeof(StreamSegmentSize) == 24);
static_assert(sizeof(c10::DataPtr) == 32);
static_assert(sizeof(c10::cuda::CUDAStream) == 16);
static_assert(sizeof(c10::MempoolId_t) == 16);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::CUDAAllocator) == 8);

// Native refuses from here on before it rounds, since rounding could overflow.
constexpr uint64_t kOneExbibyte = uint64_t{1} << 60;

// c10::reportMemoryUsageToProfiler, one call less when no profiler listens.
void ReportToProfiler(void* ptr, int64_t bytes, const stratalloc_block& block) {
  auto* profiler = static_cast<c10::MemoryReportingInfoBase*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  if (C10_LIKELY(profiler == nullptr)) return;
  profiler->reportMemoryUsage(ptr, bytes, block.allocated, block.reserved,
                              CudaDevice(block.device));
}

int LifetimeHint(size_t size, const void* caller) {
  if (__atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_RELAXED) == 0) {
    return STRATALLOC_HINT_NONE;
  }
  if (C10_UNLIKELY(IsWorkspaceInTheMaking(size, caller))) {
    return STRATALLOC_HINT_SCRATCH;
  }
  return CurrentLifetimeHint();
}

}  // namespace

void DeleteBlock(void* ptr) {
  if (ptr == nullptr) return;
  TraceDeallocation(ptr);
  const ContextOfCall context(RecordContext::ALL);
  stratalloc_block freed;
  // An unknown pointer was reported by the core, with its last owner.
  if (stratalloc_free(ptr, &freed) != 0) return;
  ReportToProfiler(ptr, -static_cast<int64_t>(freed.bytes), freed);
}

void* TorchAllocator::Malloc(c10::DeviceIndex device, size_t size,
                             uint64_t stream, int hint) {
  if (size == 0) return nullptr;
  TORCH_CHECK_WITH(
      OutOfMemoryError, size < kOneExbibyte,
      "CUDA out of memory. Tried to allocate more than 1EB memory.");
  CollectivesUnderWay::Bury();
  const ContextOfCall context(RecordContext::STATE);
  stratalloc_block block;
  stratalloc_error error;  // 2 KiB, written on failure only
  if (C10_UNLIKELY(
          stratalloc_malloc(device, size, stream, hint, &block, &error) != 0)) {
    out_of_memory_.Throw(device, size, stream, error);
  }
  ReportToProfiler(block.ptr, static_cast<int64_t>(block.bytes), block);
  TraceAllocation(block.ptr);
  return block.ptr;
}

c10::DataPtr TorchAllocator::allocate(size_t size) {
  if (C10_UNLIKELY(!IsCaching())) {
    TORCH_CHECK_WITH(
        OutOfMemoryError, size < kOneExbibyte,
        "CUDA out of memory. Tried to allocate more than 1EB memory.");
    void* ptr = AllocateUncached(size);
    return {ptr, ptr, &DeleteUncached, CudaDevice(CurrentDevice())};
  }
  const c10::DeviceIndex device = CurrentDevice();
  void* ptr =
      Malloc(device, size, StreamId(c10::cuda::getCurrentCUDAStream(device)),
             LifetimeHint(size, __builtin_return_address(0)));
  return {ptr, ptr, &DeleteBlock, CudaDevice(device)};
}

bool TorchAllocator::is_simple_data_ptr(const c10::DataPtr& data_ptr) const {
  return data_ptr.get() == data_ptr.get_context();
}

c10::DeleterFnPtr TorchAllocator::raw_deleter() const {
  return IsCaching() ? &DeleteBlock : &DeleteUncached;
}

bool TorchAllocator::initialized() { return stratalloc_initialized() != 0; }

void TorchAllocator::recordStream(const c10::DataPtr& data_ptr,
                                  c10::Stream stream) {
  recordStream(data_ptr, c10::cuda::CUDAStream(stream));
}

DeviceStats TorchAllocator::getDeviceStats(c10::DeviceIndex device) {
  CollectivesUnderWay::Bury();
  stratalloc_device_stats stats;
  stratalloc_error error;
  if (stratalloc_stats(device, &stats, &error) != 0) ThrowError(error);
  return ToDeviceStats(stats);
}

void TorchAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  TORCH_CHECK(stratalloc_reset_accumulated_stats(device) == 0,
              "Invalid device argument ", static_cast<int>(device),
              ": did you call init?");
}

void TorchAllocator::resetPeakStats(c10::DeviceIndex device) {
  TORCH_CHECK(stratalloc_reset_peak_stats(device) == 0,
              "Invalid device argument ", static_cast<int>(device),
              ": did you call init?");
}

std::pair<size_t, size_t> TorchAllocator::getMemoryInfo(
    c10::DeviceIndex device) {
  uint64_t free_bytes = 0;
  uint64_t total = 0;
  stratalloc_error error;
  if (stratalloc_memory_info(device, &free_bytes, &total, &error) != 0) {
    ThrowError(error);
  }
  return {free_bytes, total};
}

namespace {

// Did the program say expandable_segments:False? Torch keeps the same for that
// and for saying nothing, but also the text that it parsed last.
bool SaidNotExpandable() {
  static std::atomic<bool> said{false};
  std::string text = c10::CachingAllocator::AcceleratorAllocatorConfig::
      last_allocator_settings();
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](unsigned char c) { return std::isspace(c); }),
             text.end());
  constexpr std::string_view kKey = "expandable_segments:";
  // A later text that does not name the option leaves it as it is.
  if (const size_t at = text.rfind(kKey); at != std::string::npos) {
    said.store(text.compare(at + kKey.size(), 5, "False") == 0);
  }
  return said.load();
}

void UseSettings() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  // Made with 16 elements and assigned in place since: see settings.h.
  const std::vector<size_t>& divisions =
      AcceleratorAllocatorConfig::roundup_power2_divisions();
  TORCH_CHECK(divisions.size() == 16, "torch keeps ", divisions.size(),
              " divisions, 16 were expected");
  using Config = AcceleratorAllocatorConfig;
  stratalloc_settings settings;
  settings.divisions = divisions.data();
  settings.max_split_size = [] { return uint64_t{Config::max_split_size()}; };
  settings.max_non_split_rounding = [] {
    return uint64_t{Config::max_non_split_rounding_size()};
  };
  settings.large_segment_size = [] {
    return uint64_t{Config::large_segment_size()};
  };
  settings.collection_threshold = &Config::garbage_collection_threshold;
  settings.plain_segments = &SaidNotExpandable;
  SaidNotExpandable();  // what the environment says, before it is replaced
  settings.free_memory = &RunFreeMemoryCallbacks;
  stratalloc_use_settings(&settings);
}

}  // namespace

void TorchAllocator::NoteSettings() { SaidNotExpandable(); }

void TorchAllocator::init(int device_count) {
  stratalloc_error error;
  if (stratalloc_init(device_count, &error) != 0) ThrowError(error);
  ApplyHistory();
  single_device.store(device_count == 1);
  NoteCaching();
  // First parse of torch's own options: a bad one raises ValueError here, as
  // it does under the native allocator.
  UseSettings();
  stratalloc_use_workspaces(&ListLibraryWorkspaces);
  const double fraction = CUDAAllocatorConfig::per_process_memory_fraction();
  if (fraction >= 1.0) return;
  for (int device = 0; device < device_count; ++device) {
    setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device));
  }
}

double TorchAllocator::getMemoryFraction(c10::DeviceIndex device) {
  return stratalloc_memory_fraction(device);
}

void TorchAllocator::setMemoryFraction(double fraction,
                                       c10::DeviceIndex device) {
  TORCH_CHECK(0.0 <= fraction && fraction <= 1.0, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  stratalloc_error error;
  if (stratalloc_set_memory_fraction(device, fraction, &error) != 0) {
    ThrowError(error);
  }
}

std::string TorchAllocator::name() { return "native"; }

void TorchAllocator::recordStream(const c10::DataPtr& data_ptr,
                                  c10::cuda::CUDAStream stream) {
  // Empty tensors have no block; memory of another process (IPC) and views of
  // foreign memory are not ours to keep alive.
  if (data_ptr.get() == nullptr) return;
  if (data_ptr.get_deleter() != &DeleteBlock) return;
  stratalloc_error error;
  if (stratalloc_record_stream(data_ptr.get(), stream.device_index(),
                               StreamId(stream), &error) != 0) {
    ThrowError(error);
  }
}

}  // namespace stratalloc
