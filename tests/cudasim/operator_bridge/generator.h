// SPDX-License-Identifier: Apache-2.0
//
// Random numbers for bridged operators.
//
// A CUDA generator is a counter-based (Philox) state of seed and offset; a CPU
// kernel wants a CPU generator. Each call gets a fresh one seeded from the CUDA
// generator's seed and offset, and advances the offset as a kernel would, so
// torch.manual_seed() repeats a run and two calls never share numbers. The
// numbers are not those of a real device.
//
// Thread-safety: takes the CUDA generator's own mutex.

#ifndef STRATALLOC_TESTS_CUDASIM_OPERATOR_BRIDGE_GENERATOR_H_
#define STRATALLOC_TESTS_CUDASIM_OPERATOR_BRIDGE_GENERATOR_H_

#include <ATen/core/Generator.h>

#include <optional>

namespace cudasim::bridge {

// Names the random numbers of one call.
struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// The state of a CUDA generator, which is advanced by `increment` (rounded up
// to a multiple of 4, as the generator wants it). `given` and `device` as
// below.
PhiloxState TakePhilox(const std::optional<at::Generator>& given,
                       c10::DeviceIndex device, uint64_t increment);

// A CPU generator that draws the numbers of `state`, the same each time.
at::Generator CpuGenerator(const PhiloxState& state);

// What a kernel that fills `elements` numbers adds to the offset on the card
// that the device is.
uint64_t PhiloxIncrement(int64_t elements, c10::DeviceIndex device);

// `given` is the operator's generator argument; without one, the default
// generator of CUDA device `device` is used. Throws as the device would when
// `given` is a CPU generator.
// Advances it by what `elements` numbers take.
at::Generator CpuGeneratorFor(const std::optional<at::Generator>& given,
                              c10::DeviceIndex device, int64_t elements);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_CUDASIM_OPERATOR_BRIDGE_GENERATOR_H_
