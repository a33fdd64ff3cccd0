// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TENSOR_STORAGES_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TENSOR_STORAGES_H_

#include <stdint.h>

#include "python_shim/torch_bridge/base/bridge_export.h"

// Where the bytes of a tensor are, asked without an operator: an operator would
// bring them back, and who asks for their tier or evicts them wants them left
// alone.
//
// Of sparse, nested, quantized and functorch's tensors these are the storages
// of their parts (AccessList has which). Wrapper subclasses of Python have none
// of their own; what is inside them only Python knows.
//
// Any thread. The tensor must live until it returns.
extern "C" {

typedef struct {
  uint64_t address;
  uint64_t bytes;
  int device;
} stratalloc_torch_storage;

// Up to `most` storages on CUDA devices that hold bytes of the tensor (a
// TensorImpl*, Tensor._cdata); *count says how many there are, -1 that there is
// no memory anywhere: a meta tensor, a wrapper.
STRATALLOC_BRIDGE_API int stratalloc_torch_storages(
    const void* tensor, stratalloc_torch_storage* out, int most, int* count,
    char* message, int bytes);

// The storages of two tensors (TensorImpl*) exchange their memory: whoever has
// the one storage finds what was the other's, at its address. Both are of one
// device and of one size, or it is an error. The GIL is held, and nobody uses
// either meanwhile; the device is done with both.
STRATALLOC_BRIDGE_API int stratalloc_torch_exchange(const void* left,
                                                    const void* right,
                                                    char* message, int bytes);
}

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TENSOR_STORAGES_H_
