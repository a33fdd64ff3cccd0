// SPDX-License-Identifier: Apache-2.0
// What the driver says of a card's memory.
#ifndef STRATALLOC_ALLOCATOR_VALUES_MEMORY_INFO_H_
#define STRATALLOC_ALLOCATOR_VALUES_MEMORY_INFO_H_

#include "allocator/base/bytes.h"

namespace stratalloc {

struct MemoryInfo {
  Bytes free;
  Bytes total;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_MEMORY_INFO_H_
