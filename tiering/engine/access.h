// SPDX-License-Identifier: Apache-2.0
// What is asked about memory: by an operator, by a list operator, by name.
#ifndef STRATALLOC_TIERING_ENGINE_ACCESS_H_
#define STRATALLOC_TIERING_ENGINE_ACCESS_H_

#include <span>

#include "allocator/base/bytes.h"

namespace stratalloc {

// Bytes that an operator is about to use.
struct Access {
  Address address = 0;
  Bytes bytes = 0;
  bool written = false;
};
struct AddressRange {
  Address address = 0;
  Bytes bytes = 0;
};

// The elements of the lists, in order.
struct ListElements {
  std::span<const Access> accesses;
  // Those of element i end before accesses[ends[i]].
  std::span<const int> ends;
  // Bytes that the operator allocates for element i.
  std::span<const Bytes> results;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_ACCESS_H_
