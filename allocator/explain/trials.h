// SPDX-License-Identifier: Apache-2.0
// A request that was refused, made again on a copy of the block heap
// (heap_copy.h) after something was done about it: would it be served then, and
// by how much not? And what the card's memory was at that moment.
//
// Plain values; DeviceReports::Try and Parts make them and say what they cost.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_TRIALS_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_TRIALS_H_

#include <cstdint>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/cuda/device.h"
#include "allocator/explain/staying.h"
#include "allocator/heap/fragmentation.h"
#include "allocator/values/malloc_request.h"

namespace stratalloc {

// A malloc, or an operator that needs these handles on the device at once.
struct RefusedRequest {
  MallocRequest request;
  std::vector<Address> operands = {};  // handles; none: a malloc
  bool is_operator = false;
};

// What is done before it is made again.
struct Trial {
  Bytes more_limit = 0;         // in gpu_limit and the memory fraction
  Bytes more_card = 0;          // others on the card give them back
  Bytes more_room = 0;          // on the host or on disk, for what leaves
  bool pools_end = false;       // what private pools have free may go elsewhere
  bool streams_end = false;     // other streams are done with what was freed
  std::uint32_t leave_too = 0;  // what stays for these reasons may leave
  std::vector<Address> frees;   // these blocks end
  bool measure = false;         // find out how much would be served

  static std::uint32_t Bit(StayReason reason) {
    return std::uint32_t{1} << static_cast<unsigned>(reason);
  }
};

struct Tried {
  bool served = false;
  Bytes missing = 0;  // not served: by how much the limit is too low
  // With `measure`, of a malloc that is not served: a size that would be, and
  // hardly a larger one; 0 for none.
  Bytes fits = 0;
};

// One moment of a device; held.reserved <= ours <= card.total - card.free.
struct MemoryParts {
  Fragmentation held;
  Bytes ours = 0;  // what the driver gave us, in use or kept for reuse
  MemoryInfo card{};
  Bytes allowed = 0;  // by the program: gpu_limit and the memory fraction
  Bytes limit = 0;    // the same, or what the card has for us if that is less
  double fraction = 1.0;
  bool capturing = false;  // a CUDA graph is: nothing leaves meanwhile
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_TRIALS_H_
