// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/pins.h"

#include "allocator/state/pin_poll.h"
#include "python_shim/core/core.h"

namespace stratalloc::core {

Result<std::vector<BlockPin>> PinBlocks(const char* name, PinReason reason,
                                        std::span<const AddressRange> ranges) {
  std::vector<BlockPin> pins(ranges.size(), BlockPin{.reason = reason});
  if (ranges.empty()) return pins;
  // Whoever asks for a pin relies on it: no silence.
  STRATALLOC_RETURN_IF_ERROR(Core::Get().NotInAFork());
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) return pins;  // nothing can leave
  STRATALLOC_RETURN_IF_ERROR(engine->PinBlocks(name, reason, ranges, pins));
  return pins;
}

void UnpinBlocks(std::span<const BlockPin> pins, bool unobserved) {
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) return;
  for (const BlockPin& pin : pins) engine->UnpinBlock(pin, unobserved);
}

void UsePinPoll(void (*poll)(), int (*under_way)()) {
  PinPoll::Use(poll, under_way);
}

}  // namespace stratalloc::core
