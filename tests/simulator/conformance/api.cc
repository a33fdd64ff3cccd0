// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/conformance/api.h"

#include <dlfcn.h>

#include <string>
#include <vector>

// In two steps: cuda.h renames functions to their newest versions.
#define CONFORMANCE_QUOTE(name) #name
#define CONFORMANCE_SYMBOL(name) CONFORMANCE_QUOTE(name)

namespace conformance {

Api api;

std::vector<std::string> LoadApi(const std::string& cuda,
                                 const std::string& cudart) {
  // The runtime opens libcuda.so.1 by that name: the driver comes first.
  void* const driver = dlopen(cuda.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (driver == nullptr) return {dlerror()};
  void* const runtime = dlopen(cudart.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (runtime == nullptr) return {dlerror()};
  std::vector<std::string> missing;
  auto find = [&missing](void* library, const char* name, auto* function) {
    void* const found = dlsym(library, name);
    if (found == nullptr) missing.push_back(name);
    *function =
        reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
  };
#define RUNTIME(name) find(runtime, CONFORMANCE_SYMBOL(name), &api.name);
#define DRIVER(name) find(driver, CONFORMANCE_SYMBOL(name), &api.name);
#include "tests/simulator/conformance/functions.inc"
#undef RUNTIME
#undef DRIVER
  return missing;
}

}  // namespace conformance
