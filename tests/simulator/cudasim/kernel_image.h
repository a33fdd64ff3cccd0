// SPDX-License-Identifier: Apache-2.0
//
// kernel_image.h: what a loaded image of device code says of its kernels: the
// offset and size of each parameter, read from the sections .nv.info.<kernel>
// of the cubin (an ELF file for NVIDIA's machine), and which GPUs the entries
// of a fat binary are for. Nothing else of it is read; the code is never run.
//
// Read are plain cubins, which is what Triton and ptxas give, and uncompressed
// cubins in a fat binary or its wrapper. PTX, compressed cubins and anything
// else have no kernels here (`known` is false): a launch from them cannot be
// checked, which its refusal says.
//
// The driver is given an image without its size, so the image's own headers
// are believed, as the driver does. Where the size is known (a file), nothing
// beyond it is read.
//
// Thread-safety: no state.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_KERNEL_IMAGE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_KERNEL_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cudasim {

struct KernelParameter {
  size_t offset = 0;  // in the packed arguments
  size_t bytes = 0;
};

struct KernelImage {
  bool known = false;  // the image was understood
  // By mangled name, in the order of the parameters.
  std::map<std::string, std::vector<KernelParameter>> kernels;
  // Of a fat binary, compressed or not: which GPUs it has code for, 10 * major
  // + minor, and the oldest of its PTX (0: it has none).
  std::vector<int> cubins;
  int oldest_ptx = 0;

  // Has it code for such a GPU? Any image that is no fat binary counts as if.
  bool RunsOn(int major, int minor) const;
};

// `bytes` 0: not known.
KernelImage ReadKernelImage(const void* image, size_t bytes = 0);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_KERNEL_IMAGE_H_
