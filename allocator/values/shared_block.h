// SPDX-License-Identifier: Apache-2.0
// A block as another process gets it: by `handle` it maps memory, whose format
// is in ipc.h, and the block begins `offset` bytes into that.
#ifndef STRATALLOC_ALLOCATOR_VALUES_SHARED_BLOCK_H_
#define STRATALLOC_ALLOCATOR_VALUES_SHARED_BLOCK_H_

#include <string>

#include "allocator/base/bytes.h"

namespace stratalloc {

struct SharedBlock {
  std::string handle;
  Bytes offset = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_SHARED_BLOCK_H_
