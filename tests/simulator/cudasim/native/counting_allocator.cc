// SPDX-License-Identifier: Apache-2.0
//
// The kind of allocator a program hands to PyTorch as a plugin: cudaMalloc and
// cudaFree behind two C functions, and counters that the test reads. CUDA is
// whatever the process has loaded.

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <atomic>

namespace {

std::atomic<long> allocations{0};
std::atomic<long> frees{0};
std::atomic<long> live_bytes{0};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void* counting_alloc(ssize_t bytes, int, cudaStream_t) {
  void* pointer = nullptr;
  if (cudaMalloc(&pointer, static_cast<size_t>(bytes)) != cudaSuccess) {
    return nullptr;
  }
  allocations.fetch_add(1);
  live_bytes.fetch_add(bytes);
  return pointer;
}

void counting_free(void* pointer, ssize_t bytes, int, cudaStream_t) {
  cudaFree(pointer);
  frees.fetch_add(1);
  live_bytes.fetch_sub(bytes);
}

long counting_allocations() { return allocations.load(); }
long counting_frees() { return frees.load(); }
long counting_live_bytes() { return live_bytes.load(); }

}  // extern "C"
#pragma GCC visibility pop
