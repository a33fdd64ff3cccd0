// SPDX-License-Identifier: Apache-2.0
//
// The one run of a captured operator's CPU kernel that finds the shapes of its
// results.
//
// A device reads no value during a capture. A CPU kernel does, and it fails or
// crashes on an index out of range, so the run takes its inputs from, in turn:
//   1. what the capture computed (ShadowBytes) and the device's bytes, but
//      zeros for integers that no operator of the capture wrote: memory that
//      nothing has written yet may hold any index;
//   2. the same with those integers (lengths and counts have to be right);
//   3. zeros for everything.
// The next kind is tried if the kernel throws. If all three throw, the operator
// fails with the error of the second.
//
// Invariants: no byte of the device changes.
// Thread-safety: as BridgedKernel.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHAPE_RUN_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHAPE_RUN_H_

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/recording.h"
#include "tests/simulator/cudasim/operator_bridge/shadow_bytes.h"

namespace cudasim::bridge {

struct FreeBytes {
  void operator()(char* bytes) const { std::free(bytes); }
};

struct ShapeRun {
  std::vector<std::unique_ptr<char, FreeBytes>> zeros;  // of some aliases
  std::unique_ptr<AliasedTensors> aliases;
  torch::jit::Stack stack;  // as the kernel left it
};

// `given`: the operator's generator argument. Notes the operator's draws in the
// recording.
ShapeRun RunForShapes(Recording& recording, ShadowBytes& shadow,
                      const std::optional<at::Generator>& given);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHAPE_RUN_H_
