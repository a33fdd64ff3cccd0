// SPDX-License-Identifier: Apache-2.0
// C API: tiers, test hooks.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "python_shim/core.h"

namespace stratalloc {
namespace {

Result<Engine*> EngineOrError() {
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "nothing can be evicted: " + Core::Get().WhyNoEngine());
  }
  return engine;
}

// Evict and restore differ in one call.
int Move(int device, const stratalloc_range* ranges, int count, uint64_t* moved,
         stratalloc_error* error,
         Result<Bytes> (Engine::*verb)(DeviceAllocator&,
                                       std::span<const AddressRange>),
         Result<Bytes> (Engine::*all)()) {
  if (moved != nullptr) *moved = 0;
  Result<Engine*> engine = EngineOrError();
  if (!engine) return ToC(engine.error(), error);
  if (device < 0) {
    Result<Bytes> bytes = ((*engine)->*all)();
    if (!bytes) return ToC(bytes.error(), error);
    if (moved != nullptr) *moved = *bytes;
    return 0;
  }
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  if (*allocator == nullptr) return 0;
  std::vector<AddressRange> wanted;
  for (int i = 0; ranges != nullptr && i < count; ++i) {
    if (ranges[i].bytes > 0) {
      wanted.push_back({ranges[i].address, ranges[i].bytes});
    }
  }
  // Named but empty is nothing, not everything.
  if (ranges != nullptr && wanted.empty()) return 0;
  Result<Bytes> bytes = ((*engine)->*verb)(**allocator, wanted);
  if (!bytes) return ToC(bytes.error(), error);
  if (moved != nullptr) *moved = *bytes;
  return 0;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_evict(int device, const stratalloc_range* ranges, int count,
                     uint64_t* moved, stratalloc_error* error) {
  return Move(device, ranges, count, moved, error, &Engine::Evict,
              &Engine::EvictAll);
}
int stratalloc_restore(int device, const stratalloc_range* ranges, int count,
                       uint64_t* moved, stratalloc_error* error) {
  return Move(device, ranges, count, moved, error, &Engine::Restore,
              &Engine::RestoreAll);
}

int stratalloc_set_disk_codec(const char* codec, stratalloc_error* error) {
  const std::optional<DiskCodec> named = DiskCodecOf(codec);
  if (!named) {
    return ToC(Error{ErrorCode::kInvalidArgument,
                     std::string("stratalloc: there is no codec \"") + codec +
                         "\"; use off, lz4 or zstd"},
               error);
  }
  const Result<Engine*> engine = EngineOrError();
  if (!engine) return ToC(engine.error(), error);
  (*engine)->SetDiskCodec(*named);
  return 0;
}

int stratalloc_residency(const void* ptr, uint64_t bytes, uint64_t tiers[3],
                         stratalloc_error* error) {
  tiers[0] = tiers[1] = tiers[2] = 0;
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  const Address address = reinterpret_cast<Address>(ptr);
  DeviceAllocator* device = Allocator::Get().FindByAddress(address);
  if (device == nullptr) {
    char at[32];
    std::snprintf(at, sizeof(at), "%#llx",
                  static_cast<unsigned long long>(address));
    return ToC(
        Error{ErrorCode::kNotFound,
              std::string("stratalloc: no block of ours at ") + at +
                  ": the memory is another allocator's, or has been freed"},
        error);
  }
  const std::array<Bytes, kTiers> here = device->TiersOf(address, bytes);
  std::copy(here.begin(), here.end(), tiers);
  return 0;
}

int stratalloc_placement_of(uint64_t address, stratalloc_placement* out,
                            stratalloc_error* error) {
  *out = {};
  out->lifetime = -1;
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  DeviceAllocator* const device = Allocator::Get().FindByAddress(address);
  DeviceReports::Placed placed;
  if (device == nullptr || !device->FindPlaced(address, &placed)) return 0;
  *out = {.lifetime = Raw(placed.lifetime),
          .scope = Raw(placed.charge.scope),
          .category = Raw(placed.charge.category),
          .held = placed.held,
          .capturing = 0};
  for (DeviceAllocator* other : Allocator::Get().Opened()) {
    // Graphs of other devices read it as well.
    if (!IsEvictable(placed.lifetime) && other->HasCaptured()) out->held = 1;
    if (!other->AwaitRoutes()) out->capturing = 1;
  }
  return 0;
}

}  // extern "C"
