// SPDX-License-Identifier: Apache-2.0
// Strong types for everything that is an integer but not an amount. They cost
// nothing and turn a swapped argument into a compile error.
#ifndef STRATALLOC_ALLOCATOR_BASE_IDS_H_
#define STRATALLOC_ALLOCATOR_BASE_IDS_H_

#include <cstdint>
#include <type_traits>

namespace stratalloc {

// A CUDA device ordinal, as torch counts them.
enum class DeviceIndex : std::int8_t {};
inline constexpr int kMaxDevices = 16;

// A CUDA stream: the value of its cudaStream_t. 0 is the legacy default stream.
enum class StreamId : std::uint64_t {};
inline constexpr StreamId kDefaultStream{0};
// A stream of another device than the one that is spoken of says which, since
// default streams of all devices have the same value: these four alone know how
// (the device, plus 1, stands above any address). core::RecordStream makes
// them.
inline constexpr int kElsewhereShift = 58;
constexpr StreamId StreamElsewhere(DeviceIndex device, StreamId stream) {
  return StreamId{static_cast<std::uint64_t>(stream) |
                  static_cast<std::uint64_t>(static_cast<int>(device) + 1)
                      << kElsewhereShift};
}
constexpr bool IsElsewhere(StreamId stream) {
  return static_cast<std::uint64_t>(stream) >> kElsewhereShift != 0;
}
// Its device. REQUIRES: IsElsewhere(stream).
constexpr DeviceIndex DeviceElsewhere(StreamId stream) {
  return static_cast<DeviceIndex>(
      (static_cast<std::uint64_t>(stream) >> kElsewhereShift) - 1);
}
// The value of its cudaStream_t, wherever it is.
constexpr std::uint64_t StreamValue(StreamId stream) {
  return static_cast<std::uint64_t>(stream) &
         ((std::uint64_t{1} << kElsewhereShift) - 1);
}

// A CUDA event: the value of its cudaEvent_t. 0 is "no event".
enum class EventId : std::uint64_t {};
inline constexpr EventId kNoEvent{0};

// An interned scope (accounting/scope_table.h). 0 is the root: "no scope".
enum class ScopeId : std::uint32_t {};
inline constexpr ScopeId kRootScope{0};

// A line of the program that allocates (accounting/site_table.h), or a whole
// stack of calls (accounting/stack_table.h). 0: none that is known, since the
// block was not sampled.
enum class SiteId : std::uint32_t {};
inline constexpr SiteId kNoSite{0};

// What a frame of a scope stack has allocated
// (allocator/state/frame_accounts.h). 0: none.
using FrameId = std::uint32_t;

// Where bytes live. A handle may have copies on several tiers at once.
enum class TierId : std::uint8_t { kDevice = 0, kHost = 1, kDisk = 2 };
inline constexpr int kTiers = 3;

// What a block is for; decides which handles it may share (design: "placement
// by lifetime class"). The first kEvictableClasses may leave the device.
enum class LifetimeClass : std::uint8_t {
  kUnknown = 0,     // outside any forward or backward scope; evictable
  kPersistent = 1,  // parameters and buffers
  kGradient = 2,    // allocated while autograd feeds an AccumulateGrad
  kOptimizer = 3,   // allocated inside Optimizer.step
  kTransient = 4,   // everything else inside a forward or backward scope
  kStaying = 5,     // of any use; a rule of the program keeps it
};
inline constexpr int kLifetimeClasses = 6;
inline constexpr int kEvictableClasses = 4;
constexpr bool IsEvictable(LifetimeClass c) {
  return static_cast<int>(c) < kEvictableClasses;
}

// What a block is charged as; people read these names in every table.
enum class Category : std::uint8_t {
  kUnknown = 0,
  kParameter = 1,
  kBuffer = 2,
  kGradient = 3,  // of a parameter; others are autograd's own: activations
  kOptimizerState = 4,
  kActivation = 5,  // outlives the scope that made it
  kInput = 6,       // made outside any scope, then given to a model
  kTemporary = 7,   // its scope, a forward, a node or a step, still runs
  kWorkspace = 8,   // a library's own memory, no tensor's
};
inline constexpr int kCategories = 9;

template <typename Id>
constexpr auto Raw(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_IDS_H_
