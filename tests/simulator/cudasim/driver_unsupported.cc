// SPDX-License-Identifier: Apache-2.0
//
// Driver functions the simulated device does not have. Each exists, so that a
// library that asks for it loads, and fails by name when called. The list is
// every symbol of the CUDA 13.2 driver that no other file here defines.
// cuda.h is left out on purpose, the signatures do not matter.

#include <string>
#include <unordered_map>

#include "tests/simulator/cudasim/refusals.h"
#include "tests/simulator/cudasim/simulator.h"
#include "tests/simulator/cudasim/unsupported.h"

#define CUDASIM_UNSUPPORTED(name)                                \
  extern "C" __attribute__((visibility("default"))) int name() { \
    return cudasim::Unsupported(#name);                          \
  }
#include "tests/simulator/cudasim/driver_unsupported.inc"
#undef CUDASIM_UNSUPPORTED

namespace cudasim {
namespace {

const bool kDeclared = [] {
#define CUDASIM_UNSUPPORTED(name) Refusals::Get().Declare(#name);
#include "tests/simulator/cudasim/driver_unsupported.inc"
#undef CUDASIM_UNSUPPORTED
  return true;
}();

}  // namespace

void* FindUnsupportedDriverFunction(const char* name) {
  static const auto& table = *new std::unordered_map<std::string, void*>{
#define CUDASIM_UNSUPPORTED(name) {#name, reinterpret_cast<void*>(&name)},
#include "tests/simulator/cudasim/driver_unsupported.inc"
#undef CUDASIM_UNSUPPORTED
  };
  // The newest version first, as cuGetProcAddress would choose.
  for (const char* version : {"_v4", "_v3", "_v2", ""}) {
    auto found = table.find(std::string(name) + version);
    if (found != table.end()) return found->second;
  }
  return nullptr;
}

}  // namespace cudasim
