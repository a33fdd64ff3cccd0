// SPDX-License-Identifier: Apache-2.0
// C API: where the memory of single tensors may lie.
#include "python_shim/c_api/rules.h"

#include <string>
#include <vector>

#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_tier_rule(int device, const stratalloc_range* ranges, int count,
                         int host, int disk, int packing,
                         stratalloc_error* error) {
  if (packing < 0 || packing > static_cast<int>(TierRule::Packing::kAsSet)) {
    return ToC(Error{ErrorCode::kInvalidArgument,
                     "stratalloc: chunks are packed in no way that is called " +
                         std::to_string(packing)},
               error);
  }
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  Engine* const engine = Core::Get().engine();
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  if (engine == nullptr || *allocator == nullptr) return 0;
  const TierRule rule{.host = host != 0,
                      .disk = disk != 0,
                      .packing = static_cast<TierRule::Packing>(packing)};
  std::vector<AddressRange> wanted;
  for (int i = 0; i < count; ++i) {
    if (ranges[i].bytes > 0) {
      wanted.push_back({ranges[i].address, ranges[i].bytes});
    }
  }
  return ToC(engine->SetRule(**allocator, wanted, rule), error);
}

int stratalloc_placement_of(uint64_t address, stratalloc_placement* out,
                            stratalloc_error* error) {
  *out = {};
  out->lifetime = -1;
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  bool capturing = false, captured = false;
  for (DeviceAllocator* other : Allocator::Get().Opened()) {
    // First: what is over counts as captured. Graphs of other devices may read
    // it as well.
    if (!other->AwaitRoutes()) capturing = true;
    if (other->HasCaptured()) captured = true;
  }
  DeviceAllocator* const device = Allocator::Get().FindByAddress(address);
  DeviceReports::Placed placed;
  if (device == nullptr || !device->FindPlaced(address, &placed)) return 0;
  *out = {.lifetime = Raw(placed.lifetime),
          .scope = Raw(placed.charge.scope),
          .category = Raw(placed.charge.category),
          .held = placed.held || (captured && !IsEvictable(placed.lifetime)),
          .capturing = capturing,
          .stream = Raw(placed.stream)};
  return 0;
}

int stratalloc_record_streams_of(uint64_t from, uint64_t to,
                                 stratalloc_error* error) {
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  DeviceAllocator* const device = Allocator::Get().FindByAddress(from);
  DeviceReports::Placed placed;
  if (device == nullptr || device != Allocator::Get().FindByAddress(to) ||
      !device->FindPlaced(from, &placed)) {
    return ToC(Error{ErrorCode::kNotFound,
                     "stratalloc: streams are recorded on blocks of one device "
                     "alone, and one of these two is none of it"},
               error);
  }
  for (const StreamId stream : placed.recorded) {
    if (Status s = device->RecordStream(to, stream); !s) return ToC(s, error);
  }
  return 0;
}

}  // extern "C"
