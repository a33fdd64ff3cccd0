// SPDX-License-Identifier: Apache-2.0
// C API: pins that outlast an operator.
#include <vector>

#include "python_shim/core.h"

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_pin_blocks(const char* name, int reason,
                          const stratalloc_range* ranges, int count,
                          stratalloc_pin* out, stratalloc_error* error) {
  for (int i = 0; i < count; ++i) out[i] = {0, 0, reason};
  if (count == 0) return 0;
  // Whoever asks for a pin relies on it: no silence.
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) return 0;  // nothing can leave
  std::vector<AddressRange> wanted;
  for (int i = 0; i < count; ++i) {
    wanted.push_back({ranges[i].address, ranges[i].bytes});
  }
  std::vector<BlockPin> pins(wanted.size());
  const Status status =
      engine->PinBlocks(name, static_cast<PinReason>(reason), wanted, pins);
  if (!status) return ToC(status.error(), error);
  for (int i = 0; i < count; ++i) {
    const BlockPin& pin = pins[static_cast<std::size_t>(i)];
    out[i] = {pin.address, pin.serial, reason};
  }
  return 0;
}

void stratalloc_unpin_blocks(const stratalloc_pin* pins, int count,
                             int unobserved) {
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) return;
  for (int i = 0; i < count; ++i) {
    engine->UnpinBlock({pins[i].address, pins[i].serial,
                        static_cast<PinReason>(pins[i].reason)},
                       unobserved != 0);
  }
}

int stratalloc_is_pinned(const stratalloc_pin* pin) {
  DeviceAllocator* device = Core::Get().abandoned()
                                ? nullptr
                                : Allocator::Get().FindByAddress(pin->address);
  return device != nullptr &&
                 device->IsPinned({pin->address, pin->serial,
                                   static_cast<PinReason>(pin->reason)})
             ? 1
             : 0;
}

void stratalloc_use_pin_poll(void (*poll)(void), int (*under_way)(void)) {
  PinPoll::Use(poll, under_way);
}

int stratalloc_must_hand_out(uint64_t address) {
  Engine* engine = Core::Get().engine();
  return engine != nullptr && engine->MustHandOut(address) ? 1 : 0;
}

void stratalloc_hand_out(uint64_t address) {
  if (Engine* engine = Core::Get().engine()) engine->HandOut(address);
}

}  // extern "C"
