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

// `given` is the operator's generator argument; without one, the default
// generator of CUDA device `device` is used. Throws as the device would when
// `given` is a CPU generator.
at::Generator CpuGeneratorFor(const std::optional<at::Generator>& given,
                              c10::DeviceIndex device);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_CUDASIM_OPERATOR_BRIDGE_GENERATOR_H_
