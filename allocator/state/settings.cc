// SPDX-License-Identifier: Apache-2.0
#include "allocator/state/settings.h"

namespace stratalloc {

Bytes Settings::RoundToDivision(Bytes bytes, std::size_t divisions) {
  if (std::has_single_bit(bytes)) return bytes;
  const Bytes floor = std::bit_floor(bytes);
  const Bytes step = floor >> (std::bit_width(divisions) - 1);
  return step == 0 ? floor * 2 : RoundUp(bytes, step);
}

}  // namespace stratalloc
