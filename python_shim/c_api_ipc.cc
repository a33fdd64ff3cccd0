// SPDX-License-Identifier: Apache-2.0
// C API: memory past the cache, and memory shared between processes.
#include "allocator/device/plain_memory.h"
#include "python_shim/core.h"

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_uncached_malloc(uint64_t size, void** out) {
  *out = nullptr;
  return size == 0 ? 0 : PlainMalloc(size, out);
}

int stratalloc_uncached_free(void* ptr) {
  return ptr == nullptr ? 0 : PlainFree(ptr);
}

}  // extern "C"
