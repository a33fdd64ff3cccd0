// SPDX-License-Identifier: Apache-2.0
// The checksum of a range of device memory (arithmetic: checksum_mix.h). Each
// thread strides over the words, CUB adds up within a block, one atomic per
// block adds to the result.
//
// `result` is zeroed by the caller before the launch. It lies on the device:
// kernels under WSL2 cannot use memory of the host.
#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "tiering/gpu/checksum_mix.h"

// The module's own results, so that nothing has to be allocated for them:
// checksum.cc has the number. Aligned as the data is, because checksum.cc tries
// the kernel on the last two.
extern "C" {
__device__ __align__(16) unsigned long long stratalloc_checksum_results[66];
}

namespace {

constexpr int kThreads = 256;  // checksum.cc launches with the same number

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    stratalloc_checksum(const std::uint64_t* data, std::uint64_t words,
                        std::uint64_t* result) {
  using Reduce = cub::BlockReduce<unsigned long long, kThreads>;
  __shared__ typename Reduce::TempStorage storage;

  const std::uint64_t threads = std::uint64_t{gridDim.x} * kThreads;
  const std::uint64_t first =
      std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  unsigned long long sum = 0;
  // Pairs of words, so that a warp reads 512 bytes at once; handles are aligned
  // to 2 MiB, an odd last word is one thread's.
  const auto* const pairs = reinterpret_cast<const ulonglong2*>(data);
  for (std::uint64_t i = first; i < words / 2; i += threads) {
    const ulonglong2 pair = pairs[i];
    sum += stratalloc::ChecksumTerm(pair.x, 2 * i);
    sum += stratalloc::ChecksumTerm(pair.y, 2 * i + 1);
  }
  if (words % 2 != 0 && first == 0) {
    sum += stratalloc::ChecksumTerm(data[words - 1], words - 1);
  }
  const unsigned long long total = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(result), total);
  }
}
