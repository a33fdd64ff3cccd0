// SPDX-License-Identifier: Apache-2.0
// Amounts of memory. `Bytes` is a plain integer on purpose: it is added,
// compared and stored in atomics everywhere; what must not be mixed up (ids,
// devices, tiers) are the strong types of ids.h.
#ifndef STRATALLOC_ALLOCATOR_BASE_BYTES_H_
#define STRATALLOC_ALLOCATOR_BASE_BYTES_H_

#include <cstdint>
#include <string>

namespace stratalloc {

using Bytes = std::uint64_t;
using Address = std::uint64_t;  // a virtual address, device or host

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

// REQUIRES: alignment > 0; any alignment, not only powers of two.
constexpr Bytes RoundUp(Bytes value, Bytes alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr Bytes RoundDown(Bytes value, Bytes alignment) {
  return value / alignment * alignment;
}

// "512 bytes", "1.50 KiB", "2.00 MiB", "3.25 GiB": the spelling that torch's
// out-of-memory message uses, which frameworks and people parse.
std::string FormatBytes(Bytes bytes);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_BYTES_H_
