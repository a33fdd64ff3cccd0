// SPDX-License-Identifier: Apache-2.0
// The host twin of the kernel stratalloc_checksum, which registers itself. A
// test that puts a twin of its own before it calls this one, and registers this
// one again at its end.
#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_TWINS_CHECKSUM_TWIN_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_TWINS_CHECKSUM_TWIN_H_

namespace cudasim {

inline constexpr char kChecksumKernel[] = "stratalloc_checksum";

// Arguments: the address, its number of words, where the sum is added.
void ChecksumTwin(void** arguments, const unsigned grid[3],
                  const unsigned block[3]);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_TWINS_CHECKSUM_TWIN_H_
