// SPDX-License-Identifier: Apache-2.0
// C API: pins that outlast an operator.
#include "python_shim/bridge_api/pins.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python_shim/bridge_api/operators.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

namespace stratalloc {
namespace {

BlockPin FromC(const stratalloc_pin& pin) {
  if (pin.reason < 0 || pin.reason >= kPinReasons) return {};
  return {pin.address, pin.serial, static_cast<PinReason>(pin.reason)};
}

// With what is said behind it, if there was no memory for them.
Error Refused(Error error, const char* name,
              std::span<const AddressRange> ranges) {
  if (error.code != ErrorCode::kOutOfMemory) return error;
  DeviceAllocator* const device =
      Allocator::Get().FindByAddress(ranges.front().address);
  if (device == nullptr) return error;
  std::vector<Access> accesses;
  for (const AddressRange& range : ranges) {
    accesses.push_back({range.address, range.bytes, /*written=*/false});
  }
  const int index = static_cast<int>(Raw(device->device().index()));
  error = core::Refusal(std::move(error), index, kDefaultStream, accesses);
  error.message += core::TellRefusedOperator(index, kDefaultStream, name,
                                             accesses, error.message);
  return error;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_pin_blocks(const char* name, int reason,
                          const stratalloc_range* ranges, int count,
                          stratalloc_pin* out, stratalloc_error* error) {
  if (reason < 0 || reason >= kPinReasons) {
    std::fill_n(out, count, stratalloc_pin{0, 0, 0});
    return ToC(Error{ErrorCode::kInvalidArgument,
                     "stratalloc: nothing is pinned for reason " +
                         std::to_string(reason)},
               error);
  }
  std::vector<AddressRange> wanted;
  for (int i = 0; i < count; ++i) {
    wanted.push_back({ranges[i].address, ranges[i].bytes});
  }
  const auto pins =
      core::PinBlocks(name, static_cast<PinReason>(reason), wanted);
  if (!pins) {
    std::fill_n(out, count, stratalloc_pin{0, 0, reason});
    return ToC(Refused(pins.error(), name, wanted), error);
  }
  for (const BlockPin& pin : *pins) *out++ = {pin.address, pin.serial, reason};
  return 0;
}

void stratalloc_unpin_blocks(const stratalloc_pin* pins, int count,
                             int unobserved) {
  std::vector<BlockPin> taken_back;
  for (int i = 0; i < count; ++i) taken_back.push_back(FromC(pins[i]));
  core::UnpinBlocks(taken_back, unobserved != 0);
}

int stratalloc_is_pinned(const stratalloc_pin* pin) {
  DeviceAllocator* device = Core::Get().abandoned()
                                ? nullptr
                                : Allocator::Get().FindByAddress(pin->address);
  return device != nullptr && device->IsPinned(FromC(*pin));
}

int stratalloc_must_hand_out(uint64_t address) {
  Engine* engine = Core::Get().engine();
  return engine != nullptr && engine->MustHandOut(address) ? 1 : 0;
}

void stratalloc_hand_out(uint64_t address) {
  if (Engine* engine = Core::Get().engine()) engine->HandOut(address);
}

}  // extern "C"
