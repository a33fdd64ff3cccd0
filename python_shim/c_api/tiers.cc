// SPDX-License-Identifier: Apache-2.0
// C API: tiers, test hooks.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

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
template <typename Verb, typename All>
int Move(int device, const stratalloc_range* ranges, int count, uint64_t* moved,
         stratalloc_error* error, Verb&& verb, All&& all) {
  if (moved != nullptr) *moved = 0;
  Result<Engine*> engine = EngineOrError();
  if (!engine) return ToC(engine.error(), error);
  if (device < 0) {
    Result<Bytes> bytes = all(**engine);
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
  Result<Bytes> bytes = verb(**engine, **allocator, wanted);
  if (!bytes) return ToC(bytes.error(), error);
  if (moved != nullptr) *moved = *bytes;
  return 0;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_evict(int device, int to, const stratalloc_range* ranges,
                     int count, uint64_t* moved, stratalloc_error* error) {
  if (to < 0 || to > static_cast<int>(Below::kDisk)) {
    return ToC(Error{ErrorCode::kInvalidArgument,
                     "stratalloc: there is no tier " + std::to_string(to) +
                         " to evict to"},
               error);
  }
  const auto below = static_cast<Below>(to);
  return Move(
      device, ranges, count, moved, error,
      [below](Engine& engine, DeviceAllocator& allocator,
              std::span<const AddressRange> wanted) {
        return engine.Evict(allocator, wanted, below);
      },
      [below](Engine& engine) { return engine.EvictAll(below); });
}
int stratalloc_restore(int device, const stratalloc_range* ranges, int count,
                       uint64_t* moved, stratalloc_error* error) {
  return Move(
      device, ranges, count, moved, error,
      [](Engine& engine, DeviceAllocator& allocator,
         std::span<const AddressRange> wanted) {
        return engine.Restore(allocator, wanted);
      },
      [](Engine& engine) { return engine.RestoreAll(); });
}

int stratalloc_switch_tiering_off(uint64_t* moved, stratalloc_error* error) {
  *moved = 0;
  const Result<Bytes> back = Core::Get().SwitchTieringOff();
  if (!back) return ToC(back.error(), error);
  *moved = *back;
  return 0;
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

int stratalloc_empty_cache(int device, stratalloc_error* error) {
  Status fork = Core::Get().NotInAFork();
  if (!fork) return ToC(fork.error(), error);
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  if (*allocator == nullptr) return 0;
  Status emptied = (*allocator)->EmptyCache();
  return emptied ? 0 : ToC(emptied.error(), error);
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

}  // extern "C"
