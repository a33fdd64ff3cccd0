// SPDX-License-Identifier: Apache-2.0
// Why allocated bytes are on the device: exact, in bytes, one reason each.
// There is no reason but these.
//
// A handle stays or goes whole, so every block in an evictable handle counts
// under the handle's reason: what shares a handle with a pinned tensor stays
// for the same reason. If several reasons hold, the one that lasts longest
// counts (the order below). Plain values; DeviceReports::Stays() makes them
// under the device lock, and says what it costs.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_STAYING_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_STAYING_H_

#include <array>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/values/block_pin.h"

namespace stratalloc {

enum class StayReason : unsigned char {
  kTieringOff,   // nothing leaves this device at all
  kPrivatePool,  // of a CUDA graph or a MemPool: addresses are kept
  kRaw,          // a bare pointer that no operator names
  kWorkspace,    // torch keeps it for cuBLAS or cuBLASLt
  kShared,       // exported to another process
  kExported,     // through DLPack or __cuda_array_interface__
  kProgram,      // pin()
  kRule,         // the program's rule for it: it does not leave
  kGraph,        // a captured graph reads it outside its pool
  kCollective,   // a collective that is not complete uses it
  kPointer,      // data_ptr() gave its address away, lately
  kOperator,     // an operator that has not returned uses it
  kActivation,   // allocated inside a forward or backward scope
  kEvictable,    // no reason: it may leave, or is on its way
};
inline constexpr int kStayReasons = 14;
StayReason StayReasonOf(PinReason reason);
// "activations", "pinned by a graph": what the bytes are, for people.
const char* StayReasonName(StayReason reason);

struct Staying {
  std::array<Bytes, kStayReasons> bytes{};

  Bytes& of(StayReason reason) {
    return bytes[static_cast<std::size_t>(reason)];
  }
  Bytes of(StayReason reason) const {
    return bytes[static_cast<std::size_t>(reason)];
  }
  Bytes total() const;
  // "12.00 MiB activations, 4.00 MiB pinned by a graph": the largest first,
  // what is evictable last. "nothing" if nothing stays.
  std::string ToText() const;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_STAYING_H_
