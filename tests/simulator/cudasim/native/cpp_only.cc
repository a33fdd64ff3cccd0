// SPDX-License-Identifier: Apache-2.0
//
// Things of PyTorch's allocator that only C++ reaches: a FreeMemoryCallback as
// a program would register one, which notes what it sees, the sizes of
// expandable segments, and a tracker of events, as NCCL's registration attaches
// one.

#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include <cstdint>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

long calls = 0;
uint64_t used_then = 0;  // of the device, when it was called last
void* held = nullptr;    // what it frees, once

using c10::CachingDeviceAllocator::TraceEntry;

long heard[TraceEntry::OOM + 1] = {};  // by action, over all trackers
uint64_t heard_address = 0;            // of the last event
uint64_t heard_bytes = 0;

class Callback final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    ++calls;
    const auto used = reinterpret_cast<uint64_t (*)(int)>(
        dlsym(RTLD_DEFAULT, "cudasim_used"));
    used_then = used == nullptr ? 0 : used(0);
    if (held == nullptr) return false;
    void* freed = held;
    held = nullptr;
    allocator::raw_delete(freed);
    return true;
  }
};

}  // namespace

namespace c10 {  // where the macro's names are
REGISTER_FREE_MEMORY_CALLBACK("memory_callback_test", Callback)
}  // namespace c10

#pragma GCC visibility push(default)
extern "C" {

long memory_callback_calls() { return calls; }
uint64_t memory_callback_used() { return used_then; }
void memory_callback_hold(uint64_t bytes) {
  held = allocator::raw_alloc(bytes);
}

// The allocator's getExpandableSegmentSizes: how many entries there are, and
// their bytes on `stream`, by pool.
int expandable_segments(uint64_t stream, uint64_t* small_bytes,
                        uint64_t* large_bytes) {
  *small_bytes = *large_bytes = 0;
  const auto sizes = allocator::get()->getExpandableSegmentSizes(0);
  for (const auto& size : sizes) {
    if (reinterpret_cast<uint64_t>(size.stream) != stream) continue;
    *(size.is_small_pool ? small_bytes : large_bytes) += size.total_size;
  }
  return static_cast<int>(sizes.size());
}

// One tracker more; none can be taken away again.
void track() {
  allocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
    ++heard[entry.action_];
    heard_address = static_cast<uint64_t>(entry.addr_);
    heard_bytes = entry.size_;
  });
}
long tracked(int action) { return heard[action]; }
uint64_t tracked_address() { return heard_address; }
uint64_t tracked_bytes() { return heard_bytes; }

}  // extern "C"
#pragma GCC visibility pop
