// SPDX-License-Identifier: Apache-2.0
//
// One use of a CUDA generator by an operator of a graph. A target of its own:
// PyTorch's header for it is written for the CUDA compiler.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_CAPTURED_DRAW_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_CAPTURED_DRAW_H_

#include <ATen/core/Generator.h>

#include <cstdint>

namespace cudasim::bridge {

// Where a captured operator finds its seed and offset: device addresses, which
// the generator fills before every launch of the graph.
struct Draw {
  const int64_t* seed = nullptr;
  const int64_t* offset = nullptr;
  uint64_t more = 0;  // is added to the offset
};

// The generator's next `numbers` in the capture of the current stream. Takes
// the generator's mutex. Throws, as on a device, if the generator was not
// registered with the graph.
Draw NextCapturedDraw(const at::Generator& generator, uint64_t numbers);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_CAPTURED_DRAW_H_
