// SPDX-License-Identifier: Apache-2.0
// Is the torch of this process the one that this library was compiled for?
//
// The loader compares names of symbols alone, and a library for another minor
// often loads: its virtual table would be called at other places, and its
// structures read at other sizes. Asked before anything of torch's is changed:
//   minor    what libtorch_cpu says of itself, whatever Python's version says
//   slots    the virtual table of torch's own allocator has as many entries as
//            this library's: each points at code, and the next one does not
//   sizes    of structures are constants of the minor (torch_minor.h)
//
// Thread-safety: any thread. Errors: c10::Error, one line. Changes nothing.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_LAYOUT_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_LAYOUT_H_

#include <cstdint>

namespace stratalloc {

// The version that the process's libtorch_cpu states: major in the highest
// byte, minor in the next.
std::uint64_t TorchVersion();

// Throws if this library was not compiled for a torch of that version, whose
// own allocator is the object `native`; nullptr leaves its slots unasked.
void CheckTorch(std::uint64_t version, const void* native);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_TORCH_LAYOUT_H_
