// SPDX-License-Identifier: Apache-2.0
// The arithmetic that the checksum kernel and its host twin share, so that
// they agree by construction.
//
//   checksum = sum over i of Mix(word[i] + (i + 1) * kStride)   mod 2^64
//
// A sum, so blocks of threads may add their parts in any order. The index goes
// in before the mix, so swapped words change the sum. Mix is a bijection, so a
// change of any single word always shows; several changes cancel by chance
// once in 2^64. Not cryptographic: it answers "did a kernel write here".
#ifndef STRATALLOC_TIERING_GPU_CHECKSUM_MIX_H_
#define STRATALLOC_TIERING_GPU_CHECKSUM_MIX_H_

#include <cstdint>

#ifdef __CUDACC__
#define STRATALLOC_HOST_DEVICE __host__ __device__
#else
#define STRATALLOC_HOST_DEVICE
#endif

namespace stratalloc {

// 2^64 / golden ratio, odd: the indices 1, 2, 3... land far from each other.
inline constexpr std::uint64_t kChecksumStride = 0x9e3779b97f4a7c15;

// Two rounds of xor-shift and multiply by odd constants.
STRATALLOC_HOST_DEVICE inline std::uint64_t ChecksumMix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

STRATALLOC_HOST_DEVICE inline std::uint64_t ChecksumTerm(std::uint64_t word,
                                                         std::uint64_t index) {
  return ChecksumMix(word + (index + 1) * kChecksumStride);
}

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_GPU_CHECKSUM_MIX_H_
