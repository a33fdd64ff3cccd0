// SPDX-License-Identifier: Apache-2.0
// C API: set-up and blocks.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "accounting/category.h"
#include "accounting/scope_stack.h"
#include "accounting/scope_table.h"
#include "allocator/base/check.h"
#include "allocator/device/plain_memory.h"
#include "allocator/external_streams.h"
#include "allocator/settings.h"
#include "allocator/workspaces.h"
#include "python_shim/core.h"
#include "python_shim/imports.h"

namespace stratalloc {
namespace {

DeviceAllocator* DeviceOf(const void* ptr) {
  return Allocator::Get().FindByAddress(reinterpret_cast<Address>(ptr));
}
Address ToAddress(const void* ptr) { return reinterpret_cast<Address>(ptr); }

// Who is allocating: the scope on top, corrected by what autograd knows.
ScopeFrame Allocating(int hint) {
  ScopeFrame frame = CurrentScope();
  if (__builtin_expect(hint == STRATALLOC_HINT_NONE, 1)) return frame;
  if (hint == STRATALLOC_HINT_UNSEEN || hint == STRATALLOC_HINT_SCRATCH) {
    frame.lifetime = LifetimeClass::kTransient;
    return frame;
  }
  if (hint == STRATALLOC_HINT_COPY) {
    // Nobody knows how long it will live.
    if (frame.lifetime == LifetimeClass::kTransient) {
      frame.lifetime = LifetimeClass::kUnknown;
    }
    return frame;
  }
  const bool fixed = frame.lifetime == LifetimeClass::kPersistent ||
                     frame.lifetime == LifetimeClass::kOptimizer;
  if (hint == STRATALLOC_HINT_GRADIENT && !fixed) {
    frame.lifetime = LifetimeClass::kGradient;
    frame.category = Category::kGradient;
  } else if (hint == STRATALLOC_HINT_BACKWARD && !fixed) {
    frame.lifetime = LifetimeClass::kTransient;
    if (frame.category == Category::kUnknown) {
      frame.category = Category::kActivation;
    }
  }
  return frame;
}

std::string Hex(const void* ptr) {
  char text[32];
  std::snprintf(text, sizeof(text), "%p", ptr);
  return text;
}

void ReportBadFree(const void* ptr) {
  Charge charge;
  if (Allocator::Get().LastOwner(ToAddress(ptr), &charge)) {
    Log(LogLevel::kError, "double free of " + Hex(ptr) + ", last owned by " +
                              ScopeName(charge.scope) + " (" +
                              CategoryName(charge.category) + "); ignored");
    return;
  }
  Log(LogLevel::kError, "free of " + Hex(ptr) +
                            ", which stratalloc did not hand out or knows as "
                            "the middle of a block; ignored");
}

// Four words as they lie: loads that are not the stores they read from, in
// place and width, wait for these to leave the store buffer (5 ns per call).
void Describe(const AllocatedBlock& block, int device, stratalloc_block* out) {
  static_assert(offsetof(AllocatedBlock, address) == 0 &&
                offsetof(stratalloc_block, ptr) == 0);
  static_assert(offsetof(AllocatedBlock, bytes) == 8 &&
                offsetof(stratalloc_block, bytes) == 8);
  static_assert(offsetof(AllocatedBlock, allocated_bytes) == 16 &&
                offsetof(stratalloc_block, allocated) == 16);
  static_assert(offsetof(AllocatedBlock, reserved_bytes) == 24 &&
                offsetof(stratalloc_block, reserved) == 24);
  if (out == nullptr) return;
  std::memcpy(static_cast<void*>(out), &block, 32);
  out->device = device;
}

// The rest of stratalloc_malloc and stratalloc_free, apart: their frames are
// large and guarded, and the fast path pays for the frame it is in.
__attribute__((noinline)) int SlowMalloc(int device, uint64_t size,
                                         uint64_t stream,
                                         const ScopeFrame& frame, bool raw,
                                         stratalloc_block* out,
                                         stratalloc_error* error) {
  *out = {};
  out->device = device;
  Result<DeviceAllocator*> allocator = Core::Get().Device(device);
  if (!allocator) return ToC(allocator.error(), error);
  Result<AllocatedBlock> block =
      (*allocator)
          ->SlowMalloc({size,
                        StreamId{stream},
                        frame.lifetime,
                        {frame.scope, frame.category},
                        raw});
  if (!block) return ToC(block.error(), error);
  Describe(*block, device, out);
  return 0;
}

__attribute__((noinline)) int SlowFree(void* ptr, stratalloc_block* out) {
  if (out != nullptr) *out = {};
  if (ptr == nullptr || Core::Get().abandoned()) return 0;
  DeviceAllocator* device = DeviceOf(ptr);
  if (device == nullptr) {
    ReportBadFree(ptr);
    return STRATALLOC_NOT_FOUND;
  }
  Result<AllocatedBlock> freed = device->SlowFree(ToAddress(ptr));
  if (!freed) {
    ReportBadFree(ptr);
    return STRATALLOC_NOT_FOUND;
  }
  Allocator::NoteFreed(*freed);
  Describe(*freed, static_cast<int>(device->device().index()), out);
  return 0;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

const char* stratalloc_version(void) { return "0.1.0"; }
void stratalloc_string_free(char* text) { std::free(text); }

int stratalloc_configure(const stratalloc_config* config,
                         stratalloc_error* error) {
  return ToC(Core::Get().Configure(*config), error);
}

int stratalloc_init(int device_count, stratalloc_error* error) {
  return ToC(Core::Get().Init(device_count), error);
}
void stratalloc_use_settings(const stratalloc_settings* settings) {
  Settings& s = Settings::Get();
  s.UseDivisions(settings->divisions);
  s.UseMaxSplitSize(settings->max_split_size);
  s.UseMaxNonSplitRounding(settings->max_non_split_rounding);
  s.UseLargeSegmentSize(settings->large_segment_size);
  s.UseCollectionThreshold(settings->collection_threshold);
  s.UsePlainSegments(settings->plain_segments);
  s.UseFreeMemory(settings->free_memory);
}
void stratalloc_use_workspaces(
    int (*list)(void (*each)(void* context, void* address), void* context)) {
  LibraryWorkspaces::Use(list);
}
int stratalloc_initialized(void) { return Core::Get().initialized(); }
int stratalloc_device_count(void) { return Allocator::Get().device_count(); }

int stratalloc_malloc(int device, uint64_t size, uint64_t stream, int hint,
                      stratalloc_block* out, stratalloc_error* error) {
  if (size == 0) {
    *out = {};
    out->device = device;
    return 0;
  }
  const ScopeFrame frame = Allocating(hint);
  const bool raw = hint == STRATALLOC_HINT_UNSEEN;
  DeviceAllocator* const fast = Core::FastDevice(device);
  if (AllocatedBlock block;
      fast != nullptr && !raw &&
      fast->FastMalloc(size, StreamId{stream}, frame.lifetime,
                       {frame.scope, frame.category}, &block)) {
    Describe(block, device, out);
    return 0;
  }
  return SlowMalloc(device, size, stream, frame, raw, out, error);
}

int stratalloc_free(void* ptr, stratalloc_block* out) {
  DeviceAllocator* const fast = Core::FastOwner(ToAddress(ptr));
  if (AllocatedBlock freed;
      fast != nullptr && fast->FastFree(ToAddress(ptr), &freed)) {
    Allocator::NoteFreed(freed);
    Describe(freed, static_cast<int>(fast->device().index()), out);
    return 0;
  }
  return SlowFree(ptr, out);
}

int stratalloc_owns(const void* ptr) {
  if (Core::Get().abandoned()) return 0;
  DeviceAllocator* device = DeviceOf(ptr);
  return device != nullptr && device->Owns(ToAddress(ptr));
}

int stratalloc_holds(uint64_t address) {
  return !Core::Get().abandoned() &&
         Allocator::Get().FindByAddress(address) != nullptr;
}

void stratalloc_external_stream(uint64_t stream) {
  ExternalStreams::Add(StreamId{stream});
}

void stratalloc_lasting_stream(uint64_t stream) {
  ExternalStreams::NoteLasting(StreamId{stream});
}

int stratalloc_record_stream(void* ptr, int device, uint64_t stream,
                             stratalloc_error* error) {
  DeviceAllocator* owner = Core::Get().abandoned() ? nullptr : DeviceOf(ptr);
  if (owner == nullptr) {
    return ToC(Error{ErrorCode::kNotFound,
                     "record_stream on memory that is not stratalloc's"},
               error);
  }
  const auto of = static_cast<DeviceIndex>(device);
  const StreamId recorded = of == owner->device().index()
                                ? StreamId{stream}
                                : StreamElsewhere(of, StreamId{stream});
  return ToC(owner->RecordStream(ToAddress(ptr), recorded), error);
}

int stratalloc_base_allocation(void* ptr, void** base, uint64_t* bytes,
                               stratalloc_error* error) {
  DeviceAllocator* device = Core::Get().abandoned() ? nullptr : DeviceOf(ptr);
  if (device == nullptr) {
    return ToC(
        Error{ErrorCode::kNotFound, "invalid device pointer: " + Hex(ptr)},
        error);
  }
  Result<SegmentView> view = device->BaseAllocation(ToAddress(ptr));
  if (!view) return ToC(view.error(), error);
  *base = reinterpret_cast<void*>(view->address);
  if (bytes != nullptr) *bytes = view->bytes;
  return 0;
}

int stratalloc_empty_cache(int device, stratalloc_error* error) {
  if (device >= 0) {
    Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
    if (!allocator) return ToC(allocator.error(), error);
    return *allocator == nullptr ? 0 : ToC((*allocator)->EmptyCache(), error);
  }
  if (Core::Get().abandoned()) {
    return ToC(Core::Get().Opened(0).error(), error);
  }
  for (DeviceAllocator* allocator : Allocator::Get().Opened()) {
    if (Status status = allocator->EmptyCache(); !status) {
      return ToC(status.error(), error);
    }
  }
  return 0;
}

int stratalloc_cache_info(int device, uint64_t* largest,
                          stratalloc_error* error) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  // Native's rule: 0 on input means "start from what the driver has free".
  if (*largest == 0) {
    uint64_t total = 0;
    const int failed = stratalloc_memory_info(device, largest, &total, error);
    if (failed != 0) return failed;
  }
  if (*allocator != nullptr) {
    *largest = std::max<uint64_t>(*largest, (*allocator)->LargestCached());
  }
  return 0;
}

double stratalloc_memory_fraction(int device) {
  return Core::Get().abandoned()
             ? 1.0
             : Allocator::Get().Fraction(static_cast<DeviceIndex>(device));
}

int stratalloc_set_memory_fraction(int device, double fraction,
                                   stratalloc_error* error) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    return ToC(Error{ErrorCode::kInvalidArgument,
                     "invalid fraction: " + std::to_string(fraction) +
                         ". Please set within [0, 1]."},
               error);
  }
  Allocator::Get().SetFraction(static_cast<DeviceIndex>(device), fraction);
  return 0;
}

int stratalloc_memory_info(int device, uint64_t* free_bytes, uint64_t* total,
                           stratalloc_error* error) {
  Result<Device> cuda = Core::Get().Cuda(device);
  if (!cuda) return ToC(cuda.error(), error);
  Result<MemoryInfo> info = cuda->GetMemoryInfo();
  if (!info) return ToC(info.error(), error);
  *free_bytes = info->free;
  *total = info->total;
  return 0;
}

int stratalloc_enable_peer_access(int device, int peer,
                                  stratalloc_error* error) {
  // torch: `device` shall be able to read memory of `peer`.
  Result<DeviceAllocator*> owner = Core::Get().Device(peer);
  if (!owner) return ToC(owner.error(), error);
  Result<DeviceAllocator*> reader = Core::Get().Device(device);
  if (!reader) return ToC(reader.error(), error);
  if (Status status =
          (*reader)->device().EnablePeerAccess(static_cast<DeviceIndex>(peer));
      !status) {
    return ToC(status.error(), error);
  }
  if (Status status = (*owner)->EnablePeer(static_cast<DeviceIndex>(device));
      !status) {
    return ToC(status.error(), error);
  }
  const Status granted = (*owner)->WhenReady([&] {
    return GrantImports(static_cast<DeviceIndex>(peer),
                        static_cast<DeviceIndex>(device));
  });
  return ToC(granted, error);
}

int stratalloc_memcpy_async(void* to, int to_device, const void* from,
                            int from_device, uint64_t bytes, uint64_t stream,
                            int p2p_enabled) {
  Result<Device> cuda = Core::Get().Cuda(to_device);
  if (!cuda) return 101;  // cudaErrorInvalidDevice
  return cuda->CopyPeer(ToAddress(to), static_cast<DeviceIndex>(to_device),
                        ToAddress(from), static_cast<DeviceIndex>(from_device),
                        bytes, StreamId{stream}, p2p_enabled != 0);
}

int stratalloc_copy_data(void* to, const void* from, uint64_t bytes) {
  DeviceAllocator* device = DeviceOf(to);
  if (device == nullptr) device = DeviceOf(from);
  if (device == nullptr) return PlainCopy(to, from, bytes);
  // Cloning and copy-on-write call this outside any operator: both ends must
  // be on the device while the copy runs.
  const stratalloc_access ends[2] = {{ToAddress(from), bytes, 0},
                                     {ToAddress(to), bytes, 1}};
  if (stratalloc_operator_enter(static_cast<int>(device->device().index()), 0,
                                "copy_data", ends, 2, nullptr) != 0) {
    return 2;  // cudaErrorMemoryAllocation
  }
  Status done = device->device().CopyOnDevice(ToAddress(to), ToAddress(from),
                                              bytes, kDefaultStream);
  if (done) done = device->device().SynchronizeStream(kDefaultStream);
  stratalloc_operator_leave();
  if (done) return 0;
  Log(LogLevel::kError, "copy_data: " + done.error().message);
  return 999;  // cudaErrorUnknown
}

void stratalloc_enable_caching(int on) { Core::Get().caching.store(on != 0); }
int stratalloc_caching_enabled(void) { return Core::Get().caching.load(); }

}  // extern "C"
