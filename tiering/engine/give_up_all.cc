// SPDX-License-Identifier: Apache-2.0
// LowerCopies: the end of all copies of a device, where nothing is evicted.
#include "tiering/engine/lower_copies.h"

namespace stratalloc {

Status LowerCopies::GiveUpAll(const DeviceAllocator& device) {
  Copies& copies = all(device);
  for (auto& [address, copy] : copies) {
    if (copy.host) STRATALLOC_RETURN_IF_ERROR(GiveUpHost(copy));
    if (copy.disk) GiveUpChunkOf(copy);
  }
  // What must stay keeps its record, or its chunk would be lost to the budget.
  std::erase_if(copies, [](const auto& one) {
    return !one.second.host && !one.second.disk;
  });
  return {};
}

}  // namespace stratalloc
