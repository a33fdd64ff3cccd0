// SPDX-License-Identifier: Apache-2.0
// The checksum of checksum_mix.h on the host: the twin of the kernel, and what
// tests compare with. Pure function, any thread.
#ifndef STRATALLOC_TIERING_GPU_CHECKSUM_HOST_H_
#define STRATALLOC_TIERING_GPU_CHECKSUM_HOST_H_

#include <cstdint>

#include "allocator/base/bytes.h"

namespace stratalloc {

// REQUIRES: `bytes` is a multiple of 8 and `data` is aligned to 8.
std::uint64_t ChecksumOnHost(const void* data, Bytes bytes);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_GPU_CHECKSUM_HOST_H_
