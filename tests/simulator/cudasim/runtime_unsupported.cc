// SPDX-License-Identifier: Apache-2.0
//
// Runtime functions the simulated device does not have; see
// driver_unsupported.cc. The list is every symbol libcudart.so.13 exports that
// no other file here defines.

#include "tests/simulator/cudasim/refusals.h"
#include "tests/simulator/cudasim/simulator.h"

#define CUDASIM_UNSUPPORTED(name)                                \
  extern "C" __attribute__((visibility("default"))) int name() { \
    return cudasim::Unsupported(#name);                          \
  }
#include "tests/simulator/cudasim/runtime_unsupported.inc"
#undef CUDASIM_UNSUPPORTED

namespace cudasim {
namespace {

// Names that a failure can be planned for before their first call. The driver
// finds its own in driver_entry.cc.
const bool kNamed = [] {
#define CUDASIM_UNSUPPORTED(name) \
  ApiFunction::Named(#name);      \
  Refusals::Get().Declare(#name);
#include "tests/simulator/cudasim/runtime_unsupported.inc"
#undef CUDASIM_UNSUPPORTED
#define CUDASIM_FUNCTION(name) ApiFunction::Named(#name);
#include "tests/simulator/cudasim/runtime_functions.inc"
#undef CUDASIM_FUNCTION
  return true;
}();

}  // namespace
}  // namespace cudasim
