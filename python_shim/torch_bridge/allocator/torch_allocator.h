// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_ALLOCATOR_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_ALLOCATOR_H_

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "allocator/base/ids.h"
#include "python_shim/bridge_api/blocks.h"
#include "python_shim/torch_bridge/allocator/import_cache.h"
#include "python_shim/torch_bridge/allocator/out_of_memory.h"

namespace stratalloc {

// The whole of torch's CUDA allocator interface over the core's functions
// (bridge_api/). What PyTorch knows as "the CUDA caching allocator" once
// install.h has put it into torch's atomic.
//
// Story: every method translates (current device and stream, the core's
// structures to torch's, errors to exceptions, profiler and sanitizer reports)
// and calls one function of the core; no state of blocks lives here. No method
// refuses: VIRTUALS.md has the test of each, README.md what is done otherwise
// than by native.
//
// Every DataPtr carries the same bare deleter, equal to raw_deleter(), and its
// context is the data pointer: cudagraph trees and IPC compare and exchange
// deleters by address.
//
// Thread-safety: all methods, any thread, with or without the GIL. Methods may
// throw; the deleter of a block never does. With caching switched off there are
// no blocks, and the deleter throws CUDA's error, as native's (conversions.h).
// Lifetime: one per process, never destroyed (install.cc): storages are freed
// after static destructors and after Python is gone.
class TorchAllocator final
    : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using MempoolId = c10::MempoolId_t;
  using SnapshotInfo = c10::cuda::CUDACachingAllocator::SnapshotInfo;

  TorchAllocator() = default;
  // The program has told torch something; see _hooks/torch_settings.py.
  static void NoteSettings();

  // c10::Allocator
  c10::DataPtr allocate(size_t size) override;
  bool is_simple_data_ptr(const c10::DataPtr& data_ptr) const override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t count) const override;

  // c10::DeviceAllocator
  bool initialized() override;
  void emptyCache(MempoolId pool) override;
  void recordStream(const c10::DataPtr& data_ptr, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

#if TORCH_MINOR >= 13
  // Out of what is cached at `address`, or an exception.
  c10::DataPtr allocateWithAddress(size_t size, void* address) override;
#endif

  // Raw memory. size 0 gives nullptr and is not counted.
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;

  // Set-up and limits.
  void init(int device_count) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override;
  std::string name() override;  // "native": see README.md

  // Looking in.
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize>
  getExpandableSegmentSizes(c10::DeviceIndex device) override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest_block) override;
  void* getBaseAllocation(void* ptr, size_t* size) override;
  void recordStream(const c10::DataPtr& data_ptr,
                    c10::cuda::CUDAStream stream) override;
  SnapshotInfo snapshot(MempoolId pool, bool include_traces) override;

  // Copies between devices.
  void enablePeerAccess(c10::DeviceIndex device,
                        c10::DeviceIndex peer) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from,
                          int from_device, size_t count, cudaStream_t stream,
                          bool p2p_enabled) override;

  // Observers, attached before init() too.
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override;
#if TORCH_MINOR >= 12
  void attachOomRejectionObserver(
      c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override;
#endif
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override;

  // History and labels (torch_history.cc).
  bool isHistoryEnabled() override;
  void recordHistory(
      bool enabled,
      c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder,
      size_t alloc_trace_max_entries,
      c10::cuda::CUDACachingAllocator::RecordContext when, bool clear_history,
      const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>&
                            annotation) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
#if TORCH_MINOR >= 12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(
      const void* ptr) override;
#endif
#if TORCH_MINOR >= 14
  bool supportsUserMetadata() override;
  void annotateMemory(const void* ptr, const std::string& metadata) override;
#endif

  // Private pools (torch_pools.cc), sharing (torch_ipc.cc).
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId pool) override;
#if TORCH_MINOR >= 13
  // Nothing to do: the core asks the driver which streams capture, which also
  // knows of captures that torch did not begin.
  void markCaptureBegin(c10::DeviceIndex) override {}
  void markCaptureEnd(c10::DeviceIndex) override {}
#endif
  void releasePool(c10::DeviceIndex device, MempoolId pool) override;
  int getPoolUseCount(c10::DeviceIndex device, MempoolId pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId pool,
                          std::shared_ptr<CUDAAllocator> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, MempoolId pool,
                   bool use_on_oom) override;
  void setNoSplit(c10::DeviceIndex device, MempoolId pool) override;
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device, MempoolId pool,
      const std::unordered_set<void*>& expected) override;
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(
      void* ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>
  getCheckpointState(c10::DeviceIndex device, MempoolId pool) override;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state)
      override;

 private:
  void* Malloc(c10::DeviceIndex device, size_t size, StreamId stream,
               MallocHint hint);

  OutOfMemory out_of_memory_;
  ImportCache imports_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_ALLOCATOR_H_
