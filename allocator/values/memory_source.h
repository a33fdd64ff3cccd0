// SPDX-License-Identifier: Apache-2.0
// How to get memory and give it back: see unmanaged_memory.h, which also says
// what a source may do.
#ifndef STRATALLOC_ALLOCATOR_VALUES_MEMORY_SOURCE_H_
#define STRATALLOC_ALLOCATOR_VALUES_MEMORY_SOURCE_H_

#include <functional>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"

namespace stratalloc {

// Called without a lock; neither may throw.
struct MemorySource {
  std::function<Result<Address>(Bytes, StreamId)> allocate;
  std::function<void(Address)> free;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_MEMORY_SOURCE_H_
