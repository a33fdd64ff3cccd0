// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/torch_allocator.h"

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

#include "python_shim/bridge_api/devices.h"
#include "python_shim/bridge_api/operators.h"
#include "python_shim/bridge_api/setup.h"
#include "python_shim/bridge_api/statistics.h"
#include "python_shim/torch_bridge/allocator/gpu_trace.h"
#include "python_shim/torch_bridge/allocator/library_workspaces.h"
#include "python_shim/torch_bridge/allocator/stats_convert.h"
#include "python_shim/torch_bridge/allocator/torch_history.h"
#include "python_shim/torch_bridge/autograd/backward_scopes.h"
#include "python_shim/torch_bridge/autograd/lifetime_hint.h"
#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/base/conversions.h"
#include "python_shim/torch_bridge/base/torch_minor.h"
#include "python_shim/torch_bridge/collectives/collectives_under_way.h"

namespace stratalloc {

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

// Native refuses from here on before it rounds, since rounding could overflow.
constexpr uint64_t kOneExbibyte = uint64_t{1} << 60;

// c10::reportMemoryUsageToProfiler, one call less when no profiler listens.
void ReportToProfiler(const AllocatedBlock& block, int64_t bytes, int device) {
  auto* profiler = static_cast<c10::MemoryReportingInfoBase*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  if (C10_LIKELY(profiler == nullptr)) return;
  profiler->reportMemoryUsage(ToPointer(block.address), bytes,
                              block.allocated_bytes, block.reserved_bytes,
                              CudaDevice(device));
}

MallocHint LifetimeHint(size_t size, const void* caller) {
  if (C10_UNLIKELY(IsWorkspaceInTheMaking(size, caller))) {
    return MallocHint::kScratch;
  }
  return CurrentLifetimeHint(size);
}

Result<AllocatedBlock> MallocWithHint(c10::DeviceIndex device, size_t size,
                                      StreamId stream, MallocHint hint) {
  const BetweenNodes between;
  return core::Malloc(device, size, stream, hint);
}

}  // namespace

void DeleteBlock(void* ptr) {
  if (ptr == nullptr) return;
  TraceDeallocation(ptr);
  const ContextOfFree context;
  AllocatedBlock freed;
  // An unknown pointer was reported by the core, with its last owner.
  const std::optional<DeviceIndex> device = core::Free(ToAddress(ptr), &freed);
  if (!device.has_value()) return;
  ReportToProfiler(freed, -static_cast<int64_t>(freed.bytes),
                   static_cast<int>(*device));
}

void* TorchAllocator::Malloc(c10::DeviceIndex device, size_t size,
                             StreamId stream, MallocHint hint) {
  if (size == 0) return nullptr;
  TORCH_CHECK_WITH(
      OutOfMemoryError, size < kOneExbibyte,
      "CUDA out of memory. Tried to allocate more than 1EB memory.");
  CollectivesUnderWay::Bury();
  const ContextOfMalloc context(size);
  const Result<AllocatedBlock> block =
      C10_LIKELY(hint == MallocHint::kNone)
          ? core::Malloc(device, size, stream, hint)
          : MallocWithHint(device, size, stream, hint);
  if (C10_UNLIKELY(!block)) {
    out_of_memory_.Throw(device, size, stream, hint, block.error());
  }
  ReportToProfiler(*block, static_cast<int64_t>(block->bytes), device);
  void* const ptr = ToPointer(block->address);
  TraceAllocation(ptr);
  return ptr;
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
      Malloc(device, size, ToStreamId(c10::cuda::getCurrentCUDAStream(device)),
             LifetimeHint(size, __builtin_return_address(0)));
  return {ptr, ptr, &DeleteBlock, CudaDevice(device)};
}

#if TORCH_MINOR >= 13
c10::DataPtr TorchAllocator::allocateWithAddress(size_t size, void* address) {
  TORCH_CHECK(ToAddress(address) % kMinBlockSize == 0,
              "mallocWithAddress: addr must be aligned to kMinBlockSize (",
              kMinBlockSize, " bytes), got ", address);
  TORCH_CHECK(IsCaching(),
              "Exact-address allocation is only supported by the "
              "native CUDA caching allocator");
  const c10::DeviceIndex device = CurrentDevice();
  if (size == 0) return {nullptr, nullptr, &DeleteBlock, CudaDevice(device)};
  const ContextOfMalloc context(size);
  const MallocHint hint = CurrentLifetimeHint(size);
  const Result<AllocatedBlock> block = [&] {
    const BetweenNodes between;
    return core::MallocAt(device, size,
                          ToStreamId(c10::cuda::getCurrentCUDAStream(device)),
                          hint, ToAddress(address));
  }();
  TORCH_CHECK(block.has_value(),
              "Could not allocate CUDA storage at exact address ", address,
              ": ", block.error().message);
  ReportToProfiler(*block, static_cast<int64_t>(block->bytes), device);
  TraceAllocation(address);
  return {address, address, &DeleteBlock, CudaDevice(device)};
}
#endif

bool TorchAllocator::is_simple_data_ptr(const c10::DataPtr& data_ptr) const {
  return data_ptr.get() == data_ptr.get_context();
}

c10::DeleterFnPtr TorchAllocator::raw_deleter() const {
  return IsCaching() ? &DeleteBlock : &DeleteUncached;
}

bool TorchAllocator::initialized() { return core::IsInitialized(); }

void TorchAllocator::recordStream(const c10::DataPtr& data_ptr,
                                  c10::Stream stream) {
  recordStream(data_ptr, c10::cuda::CUDAStream(stream));
}

c10::CachingDeviceAllocator::DeviceStats TorchAllocator::getDeviceStats(
    c10::DeviceIndex device) {
  CollectivesUnderWay::Bury();
  return ToTorch(OrThrow(core::Stats(device)));
}

void TorchAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  TORCH_CHECK(core::ResetAccumulatedStats(device).has_value(),
              "Invalid device argument ", static_cast<int>(device),
              ": did you call init?");
}

void TorchAllocator::resetPeakStats(c10::DeviceIndex device) {
  TORCH_CHECK(core::ResetPeakStats(device).has_value(),
              "Invalid device argument ", static_cast<int>(device),
              ": did you call init?");
}

std::pair<size_t, size_t> TorchAllocator::getMemoryInfo(
    c10::DeviceIndex device) {
  const MemoryInfo card = OrThrow(core::GetMemoryInfo(device));
  return {card.free, card.total};
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

#if TORCH_MINOR >= 12
// Of the option, not of the fraction that was set since: as native.
double RejectionShare() {
  return CUDAAllocatorConfig::throw_on_cudamalloc_oom()
             ? CUDAAllocatorConfig::per_process_memory_fraction()
             : 0.0;
}
#endif

void UseSettings() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  // Made with 16 elements and assigned in place since: see settings.h.
  const std::vector<size_t>& divisions =
      AcceleratorAllocatorConfig::roundup_power2_divisions();
  TORCH_CHECK(divisions.size() == 16, "torch keeps ", divisions.size(),
              " divisions, 16 were expected");
  using Config = AcceleratorAllocatorConfig;
  core::TorchSettings settings{};
  settings.divisions = divisions.data();
  settings.max_split_size = [] { return Bytes{Config::max_split_size()}; };
  settings.max_non_split_rounding = [] {
    return Bytes{Config::max_non_split_rounding_size()};
  };
  settings.large_segment_size = [] {
    return Bytes{Config::large_segment_size()};
  };
  settings.collection_threshold = &Config::garbage_collection_threshold;
  settings.unmanaged_segments = &SaidNotExpandable;
  SaidNotExpandable();  // what the environment says, before it is replaced
#if TORCH_MINOR >= 12
  settings.rejection_share = &RejectionShare;
#endif
  settings.free_memory = &RunFreeMemoryCallbacks;
  settings.share_version = kShareVersion;
  core::UseSettings(settings);
}

}  // namespace

void TorchAllocator::NoteSettings() { SaidNotExpandable(); }

void TorchAllocator::init(int device_count) {
  OrThrow(core::Init(device_count));
  ApplyHistory();
  single_device.store(device_count == 1);
  NoteCaching();
  // First parse of torch's own options: a bad one raises ValueError here, as
  // it does under the native allocator.
  UseSettings();
  core::UseWorkspaces(&ListLibraryWorkspaces);
  const double fraction = CUDAAllocatorConfig::per_process_memory_fraction();
  if (fraction >= 1.0) return;
  for (int device = 0; device < device_count; ++device) {
    setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device));
  }
}

double TorchAllocator::getMemoryFraction(c10::DeviceIndex device) {
  return core::MemoryFraction(device);
}

void TorchAllocator::setMemoryFraction(double fraction,
                                       c10::DeviceIndex device) {
  TORCH_CHECK(0.0 <= fraction && fraction <= 1.0, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  OrThrow(core::SetMemoryFraction(device, fraction));
}

std::string TorchAllocator::name() { return "native"; }

void TorchAllocator::recordStream(const c10::DataPtr& data_ptr,
                                  c10::cuda::CUDAStream stream) {
  // Empty tensors have no block; memory of another process (IPC) and views of
  // foreign memory are not ours to keep alive.
  if (data_ptr.get() == nullptr) return;
  if (data_ptr.get_deleter() != &DeleteBlock) return;
  OrThrow(core::RecordStream(ToAddress(data_ptr.get()), stream.device_index(),
                             ToStreamId(stream)));
}

}  // namespace stratalloc
