// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/modules.h"

#include <unistd.h>

#include "tests/cudasim/launches.h"

namespace cudasim {

Modules& Modules::Get() {
  static Modules& modules = *new Modules;
  return modules;
}

Status Modules::Load(const void* image, void** module) {
  if (image == nullptr || module == nullptr) return kInvalidValue;
  std::lock_guard<std::mutex> lock(mu_);
  last_ += 16;
  loaded_.insert(last_);
  *module = reinterpret_cast<void*>(last_);
  return kOk;
}

Status Modules::LoadFile(const char* path, void** module) {
  if (path == nullptr) return kInvalidValue;
  if (access(path, R_OK) != 0) return kFileNotFound;
  return Load(path, module);
}

Status Modules::Unload(void* module) {
  std::lock_guard<std::mutex> lock(mu_);
  return loaded_.erase(reinterpret_cast<uint64_t>(module)) != 0
             ? kOk
             : kInvalidHandle;
}

Status Modules::Kernel(void* module, const char* name, void** kernel) {
  if (name == nullptr || kernel == nullptr) return kInvalidValue;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (loaded_.count(reinterpret_cast<uint64_t>(module)) == 0) {
      return kInvalidHandle;
    }
  }
  *kernel = const_cast<void*>(Launches::Get().FunctionOfModule(name));
  return kOk;
}

}  // namespace cudasim
