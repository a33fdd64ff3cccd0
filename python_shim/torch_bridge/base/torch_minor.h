// SPDX-License-Identifier: Apache-2.0
// Differences between PyTorch's minors 2.11 to 2.15 in what the bridge uses.
//
// What a minor adds to the allocator's interface stands where it is used, under
// `#if TORCH_MINOR >= N`. Here is what is the same thing in another shape, and
// the sizes of the structures that cross the boundary by value: no loader
// checks those. Source: the headers of the five wheels.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_TORCH_MINOR_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_TORCH_MINOR_H_

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <utility>

namespace stratalloc {

// The five minors differ in at least one of these. `slots`: of CUDAAllocator's
// virtual table, the two destructors included.
struct BoundarySizes {
  int minor;
  int slots;
  std::size_t device_stats, trace_entry, snapshot_info, config_info;
};
inline constexpr BoundarySizes kBoundarySizes[] = {
    {11, 50, 976, 136, 160, 88},   {12, 52, 984, 136, 160, 88},
    {13, 55, 1016, 136, 176, 104}, {14, 57, 1016, 136, 224, 104},
    {15, 57, 1016, 168, 224, 104},
};
inline constexpr const BoundarySizes& kSizes =
    kBoundarySizes[TORCH_MINOR >= 11 && TORCH_MINOR <= 15 ? TORCH_MINOR - 11
                                                          : 0];

static_assert(kSizes.minor == TORCH_MINOR,
              "this source is known to compile for torch 2.11 to 2.15");
static_assert(sizeof(c10::CachingDeviceAllocator::DeviceStats) ==
              kSizes.device_stats);
static_assert(sizeof(c10::CachingDeviceAllocator::TraceEntry) ==
              kSizes.trace_entry);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::SnapshotInfo) ==
              kSizes.snapshot_info);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::AllocatorConfigInfo) ==
              kSizes.config_info);
// The same in all of them.
static_assert(sizeof(c10::CachingAllocator::Stat) == 32);
static_assert(sizeof(c10::CachingAllocator::StatArray) == 96);
static_assert(sizeof(c10::CachingDeviceAllocator::BlockInfo) == 40);
static_assert(sizeof(c10::CachingDeviceAllocator::SegmentInfo) == 120);
static_assert(sizeof(c10::CachingDeviceAllocator::AnnotationEntry) == 72);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::CheckpointDelta) == 48);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::ShareableHandle) == 40);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::StreamSegmentSize) == 24);
static_assert(sizeof(c10::DataPtr) == 32);
static_assert(sizeof(c10::cuda::CUDAStream) == 16);
static_assert(sizeof(c10::MempoolId_t) == 16);
static_assert(sizeof(c10::cuda::CUDACachingAllocator::CUDAAllocator) == 8);

// Version of the handles that native sends to other processes
// (allocator/ipc.h).
inline constexpr int kShareVersion = TORCH_MINOR >= 13 ? 3 : 2;

// From 2.13 on native waits for its streams under a route that captures
// nothing, and counts it: markCaptureBegin has said what captures.
inline constexpr bool kCountsWaitsInRoutes = TORCH_MINOR >= 13;

// Whether torch never releases a failed capture's use of its pool, whose route
// it has ended. Up to 2.12 it ends no such route, from 2.14 on it releases
// both.
inline constexpr bool kKeepsUseOfFailedCapture = TORCH_MINOR == 13;

// An entry of torch's tables of workspaces: memory alone, from 2.13 on with its
// size beside it.
inline const c10::DataPtr& WorkspaceMemory(const c10::DataPtr& memory) {
  return memory;
}
inline const c10::DataPtr& WorkspaceMemory(
    const std::pair<c10::DataPtr, std::size_t>& entry) {
  return entry.first;
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_TORCH_MINOR_H_
