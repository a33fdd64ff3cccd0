// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/arena.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace cudasim {
namespace {

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

bool Hide(uint64_t address, uint64_t bytes) {
  return mmap(At(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

bool Show(uint64_t address, uint64_t bytes, int file, uint64_t offset,
          bool writable) {
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  return mmap(At(address), bytes, protection, MAP_SHARED | MAP_FIXED, file,
              static_cast<off_t>(offset)) != MAP_FAILED;
}

}  // namespace

Arena::Arena(bool phantom) {
  // Sanitizers leave less room: halve until it fits. ThreadSanitizer accepts
  // large ranges but pays for their shadow: twice what an allocator reserves at
  // least, so that others find room beside it.
  uint64_t size = uint64_t{phantom ? 80u : 1u} << 40;
#if defined(__SANITIZE_THREAD__)
  size = uint64_t{128} << 30;
#endif
  for (; size >= uint64_t{16} << 30; size /= 2) {
    const uint64_t delta = phantom ? 0 : size;
    void* range = mmap(nullptr, size + delta + kGranularity, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    const uint64_t start = reinterpret_cast<uint64_t>(range);
    base_ = (start + kGranularity - 1) / kGranularity * kGranularity;
    size_ = size;
    delta_ = delta;
    return;
  }
  std::fprintf(stderr,
               "cudasim: no 32 GiB of address space left for the simulated "
               "device; lift the limit (ulimit -v unlimited)\n");
  std::_Exit(2);
}

bool Arena::ShowView(uint64_t address, uint64_t bytes, int file,
                     uint64_t offset, bool writable) {
  return Show(address + delta_, bytes, file, offset, writable);
}

bool Arena::HideView(uint64_t address, uint64_t bytes) {
  return Hide(address + delta_, bytes);
}

bool Arena::ShowToHost(uint64_t address, uint64_t bytes, int file,
                       uint64_t offset) {
  return Show(address, bytes, file, offset, /*writable=*/true);
}

bool Arena::HideFromHost(uint64_t address, uint64_t bytes) {
  return Hide(address, bytes);
}

}  // namespace cudasim
