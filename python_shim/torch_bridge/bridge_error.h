// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BRIDGE_ERROR_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BRIDGE_ERROR_H_

#include "python_shim/c_api.h"

namespace stratalloc {

// Turns the core's error into the exception torch knows: out of memory is
// c10::OutOfMemoryError (torch.OutOfMemoryError in Python, what frameworks
// catch to retry with a smaller batch), everything else c10::Error
// (RuntimeError). The message is the core's, unchanged: frameworks also match
// the text "CUDA out of memory". Thrown here and nowhere deeper: the core
// itself never throws.
[[noreturn]] void ThrowError(const stratalloc_error& error);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BRIDGE_ERROR_H_
