// SPDX-License-Identifier: Apache-2.0
//
// modules.h: loaded images of device code, as modules and as libraries. An
// image is taken as it is: nothing is kept of it, its kernels are known by
// name only (launches.h), and what needs more of it (its variables, how many
// kernels it has) is refused by name.
//
// Thread-safety: a lock of its own.

#ifndef STRATALLOC_TESTS_CUDASIM_MODULES_H_
#define STRATALLOC_TESTS_CUDASIM_MODULES_H_

#include <cstdint>
#include <mutex>
#include <unordered_set>

#include "tests/cudasim/status.h"

namespace cudasim {

class Modules {
 public:
  static Modules& Get();

  // kInvalidValue without an image.
  Status Load(const void* image, void** module);
  // kFileNotFound if it cannot be opened.
  Status LoadFile(const char* path, void** module);
  // kInvalidHandle unless it is loaded.
  Status Unload(void* module);
  // A kernel's token (launches.h). kInvalidHandle, kInvalidValue.
  Status Kernel(void* module, const char* name, void** kernel);

 private:
  std::mutex mu_;
  std::unordered_set<uint64_t> loaded_;
  uint64_t last_ = 0x6d0000000000;  // looks like nothing else
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_MODULES_H_
