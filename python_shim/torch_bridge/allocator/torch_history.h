// SPDX-License-Identifier: Apache-2.0
// What the rest of the bridge must do for history and for sites: gather what a
// call needs before the core takes a lock, since that may need the GIL, and
// hand it over for the call's length.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_HISTORY_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_HISTORY_H_

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/ids.h"

namespace stratalloc {

// What is gathered, and when: 0 while nothing is, which is one relaxed load on
// the hot path.
struct Gathering {
  // native's rule of contexts: where the level asked for is reached.
  static constexpr std::uint32_t kContexts = 3;  // a RecordContext
  // The line that asks for a block, of mallocs that are sampled.
  static constexpr std::uint32_t kSites = 4;
};
extern std::atomic<std::uint32_t> gathering;

// Set-up at init(): what was asked for before there was a device, and whether
// the core records sites.
void ApplyHistory();
// Whether the core records sites may have changed.
void ApplyTelemetry();

// native gathers of a malloc at every level.
class ContextOfMalloc {
 public:
  explicit ContextOfMalloc(std::size_t size)
      : gathered_(gathering.load(std::memory_order_relaxed)) {
    if (C10_UNLIKELY(gathered_ != 0)) Gather(size);
  }
  ~ContextOfMalloc() {
    if (C10_UNLIKELY(gathered_ != 0)) Drop();
  }
  ContextOfMalloc(const ContextOfMalloc&) = delete;
  ContextOfMalloc& operator=(const ContextOfMalloc&) = delete;

 private:
  // May take the GIL.
  void Gather(std::size_t size);
  void Drop();

  const std::uint32_t gathered_;
  SiteId site_before_{};
};

// Of a free at the highest level alone. No site: a deleter takes no GIL for it.
class ContextOfFree {
 public:
  ContextOfFree()
      : gathered_((gathering.load(std::memory_order_relaxed) &
                   Gathering::kContexts) == kAll) {
    if (C10_UNLIKELY(gathered_)) Gather();
  }
  ~ContextOfFree() {
    if (C10_UNLIKELY(gathered_)) Drop();
  }
  ContextOfFree(const ContextOfFree&) = delete;
  ContextOfFree& operator=(const ContextOfFree&) = delete;

 private:
  static constexpr auto kAll = static_cast<std::uint32_t>(
      c10::CachingDeviceAllocator::RecordContext::ALL);
  static void Gather();
  static void Drop();

  const bool gathered_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_HISTORY_H_
