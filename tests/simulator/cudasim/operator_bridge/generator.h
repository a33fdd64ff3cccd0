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
// In a capture the seed and the offset are not known yet: a Draw says where the
// generator will have put them when the graph is launched, and the numbers are
// made from there, new ones at every launch.
//
// Thread-safety: takes the CUDA generator's own mutex.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_GENERATOR_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_GENERATOR_H_

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/captured_draw.h"

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

// How many numbers an operator that draws fills: its first argument is the
// tensor it fills or draws for, or the sizes of its result.
int64_t ElementsDrawn(const c10::IValue& first);

// `given` is the operator's generator argument; without one, the default
// generator of CUDA device `device` is used. Throws as the device would when
// `given` is a CPU generator.
// Advances it by what `elements` numbers take.
at::Generator CpuGeneratorFor(const std::optional<at::Generator>& given,
                              c10::DeviceIndex device, int64_t elements);

// While one lives, CpuGeneratorFor on this thread notes draws of a capture. An
// operator that runs again for its shapes takes the draws noted before again.
class RecordingDraws {
 public:
  explicit RecordingDraws(std::vector<Draw>* draws);
  ~RecordingDraws();
  RecordingDraws(const RecordingDraws&) = delete;
  RecordingDraws& operator=(const RecordingDraws&) = delete;
};

// While one lives, CpuGeneratorFor on this thread gives the noted draws, one
// after the other, whatever it is asked for.
class ReplayingDraws {
 public:
  explicit ReplayingDraws(const std::vector<Draw>* draws);
  ~ReplayingDraws();
  ReplayingDraws(const ReplayingDraws&) = delete;
  ReplayingDraws& operator=(const ReplayingDraws&) = delete;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_GENERATOR_H_
