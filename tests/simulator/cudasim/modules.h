// SPDX-License-Identifier: Apache-2.0
//
// modules.h: loaded images of device code, as modules and as libraries. Of an
// image that can be read (kernel_image.h) its kernels and their parameters are
// kept; of any other nothing, and a kernel of every name is in it. What needs
// more (its variables, how many kernels it has) is refused by name.
//
// Thread-safety: a lock of its own.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_MODULES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_MODULES_H_

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "tests/simulator/cudasim/cards.h"
#include "tests/simulator/cudasim/kernel_image.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

class Modules {
 public:
  static Modules& Get();

  // kInvalidValue without an image; kNoBinaryForGpu if it is a fat binary and
  // has no code for `on` (nullptr: of a library, for any device).
  Status Load(const void* image, const Card* on, void** module);
  // kFileNotFound if it cannot be opened.
  Status LoadFile(const char* path, const Card* on, void** module);
  // kInvalidHandle unless it is loaded.
  Status Unload(void* module);
  // A kernel's token (launches.h). kInvalidHandle, kInvalidValue; kNotFound if
  // an image that could be read has no such kernel.
  Status Kernel(void* module, const char* name, void** kernel);

 private:
  std::mutex mu_;
  Status Add(KernelImage image, const Card* on, void** module);

  std::unordered_map<uint64_t, KernelImage> loaded_;
  uint64_t last_ = 0x6d0000000000;  // looks like nothing else
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_MODULES_H_
