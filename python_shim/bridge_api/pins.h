// SPDX-License-Identifier: Apache-2.0
// Pins that outlast an operator (allocator/values/block_pin.h). For threads and
// failure see setup.h.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_PINS_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_PINS_H_

#include <span>
#include <vector>

#include "allocator/base/export.h"
#include "allocator/base/result.h"
#include "allocator/values/block_pin.h"
#include "tiering/engine/access.h"

namespace stratalloc::core {

// The blocks that hold these ranges, on any devices, are brought back together
// and stay on the device until they are freed or unpinned. A pin for each
// range, none (serial 0) where nothing could leave. On failure (kOutOfMemory:
// they do not fit together; kShutdown: this is a forked child) nothing is
// pinned. `name` is for messages. Waits; no lock or GIL held.
STRATALLOC_API Result<std::vector<BlockPin>> PinBlocks(
    const char* name, PinReason reason, std::span<const AddressRange> ranges);
// Takes pins back; one of a block that has been freed is ignored. `unobserved`:
// nobody saw on which streams the blocks were used. Never waits.
STRATALLOC_API void UnpinBlocks(std::span<const BlockPin> pins,
                                bool unobserved);
// `poll` is called without the device lock whenever victims are chosen and
// while a thread waits for room, from any thread, and takes back the pins of
// what is over. `under_way`, under any lock: 0 if there are no such pins.
// nullptr for none.
STRATALLOC_API void UsePinPoll(void (*poll)(), int (*under_way)());

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_PINS_H_
