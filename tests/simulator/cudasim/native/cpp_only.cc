// SPDX-License-Identifier: Apache-2.0
//
// Things of PyTorch's allocator that only C++ reaches: a FreeMemoryCallback as
// a program would register one, which notes what it sees, the sizes of
// expandable segments, a tracker of events, as NCCL's registration attaches
// one, the names of its options, observers of rejections and blocks at an
// address.

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

long calls = 0;
uint64_t used_then = 0;  // of the device, when it was called last
void* held = nullptr;    // what it frees, once

using c10::CachingDeviceAllocator::TraceEntry;

constexpr int kActions = 10;
long events[kActions] = {};  // by action, over all trackers
uint64_t tracked_at = 0;     // of the last event
uint64_t tracked_size = 0;

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

std::atomic<long> rejections{0};  // calls of an observer
uint64_t rejected[3] = {};        // bytes asked for, reserved, of the card

std::map<uint64_t, c10::DataPtr> at_address;  // by it

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

// Is there a FreeMemoryCallback of this name?
int memory_callback_known(const char* name) {
  return c10::FreeCudaMemoryCallbacksRegistry()->Has(name) ? 1 : 0;
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
    ++events[entry.action_];
    tracked_at = static_cast<uint64_t>(entry.addr_);
    tracked_size = entry.size_;
  });
}
long tracked(int action) { return events[action]; }
uint64_t tracked_address() { return tracked_at; }
uint64_t tracked_bytes() { return tracked_size; }

// Every option that PYTORCH_ALLOC_CONF may name, separated by commas.
void known_options(char* out, int bytes) {
  std::string names;
  for (const auto* keys :
       {&c10::CachingAllocator::AcceleratorAllocatorConfig::getKeys(),
        &allocator::CUDAAllocatorConfig::getKeys()}) {
    for (const std::string& key : *keys) names += key + ",";
  }
  std::snprintf(out, static_cast<size_t>(bytes), "%s", names.c_str());
}

#if TORCH_MINOR >= 12
// `fail`: it throws, too.
void observe_rejections(int fail) {
  allocator::attachOomRejectionObserver(
      [fail](int64_t, size_t size, size_t reserved, size_t total) {
        rejected[0] = size;
        rejected[1] = reserved;
        rejected[2] = total;
        ++rejections;
        if (fail != 0) throw std::runtime_error("an observer's own");
      });
}
long rejections_seen(uint64_t out[3]) {
  const long seen = rejections.load();
  for (int i = 0; i < 3; ++i) out[i] = rejected[i];
  return seen;
}
#endif

#if TORCH_MINOR >= 13
// 0, or 1 with a message; whether the pointer is a plain one of the allocator's
// in *plain.
int allocate_at(uint64_t size, uint64_t address, int* plain, char* message,
                int bytes) {
  try {
    c10::DataPtr data =
        allocator::allocateWithAddress(size, reinterpret_cast<void*>(address));
    *plain = data.get_deleter() == allocator::get()->raw_deleter() &&
             data.get() == data.get_context() && data.device().is_cuda();
    const auto got = reinterpret_cast<uint64_t>(data.get());
    if (got != 0) at_address[got] = std::move(data);
    return got == (size == 0 ? 0 : address) ? 0 : 2;
  } catch (const c10::Error& e) {
    std::snprintf(message, static_cast<size_t>(bytes), "%s",
                  e.what_without_backtrace());
    return 1;
  }
}
void free_at(uint64_t address) { at_address.erase(address); }
#endif

}  // extern "C"
#pragma GCC visibility pop
