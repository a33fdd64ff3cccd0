// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/modules.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/launches.h"

namespace cudasim {

Modules& Modules::Get() {
  static Modules& modules = *new Modules;
  return modules;
}

Status Modules::Add(KernelImage image, const Card* on, void** module) {
  if (on != nullptr && !image.RunsOn(on->compute_major, on->compute_minor)) {
    return kNoBinaryForGpu;
  }
  std::lock_guard<std::mutex> lock(mu_);
  last_ += 16;
  loaded_[last_] = std::move(image);
  *module = reinterpret_cast<void*>(last_);
  return kOk;
}

Status Modules::Load(const void* image, const Card* on, void** module) {
  if (image == nullptr || module == nullptr) return kInvalidValue;
  return Add(ReadKernelImage(image), on, module);
}

Status Modules::LoadFile(const char* path, const Card* on, void** module) {
  if (path == nullptr || module == nullptr) return kInvalidValue;
  std::ifstream file(path, std::ios::binary);
  if (!file) return kFileNotFound;
  const std::string bytes((std::istreambuf_iterator<char>(file)),
                          std::istreambuf_iterator<char>());
  if (bytes.empty()) return Add({}, on, module);
  return Add(ReadKernelImage(bytes.data(), bytes.size()), on, module);
}

Status Modules::Unload(void* module) {
  std::lock_guard<std::mutex> lock(mu_);
  return loaded_.erase(reinterpret_cast<uint64_t>(module)) != 0
             ? kOk
             : kInvalidHandle;
}

Status Modules::Kernel(void* module, const char* name, void** kernel) {
  if (name == nullptr || kernel == nullptr) return kInvalidValue;
  std::optional<std::vector<KernelParameter>> parameters;
  {
    std::lock_guard<std::mutex> lock(mu_);
    auto found = loaded_.find(reinterpret_cast<uint64_t>(module));
    if (found == loaded_.end()) return kInvalidHandle;
    const KernelImage& image = found->second;
    auto known = image.kernels.find(name);
    if (known != image.kernels.end()) {
      parameters = known->second;
    } else if (image.known) {
      return kNotFound;
    }
  }
  *kernel = const_cast<void*>(Launches::Get().FunctionOfModule(
      reinterpret_cast<uint64_t>(module), name, std::move(parameters)));
  return kOk;
}

}  // namespace cudasim
