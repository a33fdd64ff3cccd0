// SPDX-License-Identifier: Apache-2.0
//
// What the vendor's libraries and multi-step kernels take from PyTorch's
// allocator beside an operator's results, on a device whose card is modelled.
// Without a card nothing is taken.
//
//   cuBLAS      per thread's handle and stream, kept: at the first matrix
//               product, of PyTorch's own size for the card (32 MiB on 9.0,
//               8.125 MiB elsewhere, CUBLAS_WORKSPACE_CONFIG), or the card's
//               figure where a profile gives one. Backward runs on another
//               thread and so takes a second one, as it does on a GPU;
//               the code of cuBLAS leaves the device's free memory then, too;
//   cuBLASLt    likewise, at the first addmm whose bias it adds, unless
//               TORCH_CUBLASLT_UNIFIED_WORKSPACE=1 shares the other;
//   cuDNN       per convolution, for its length: its operands once more (the
//               change of layout for tensor cores), at most the card's figure;
//   sort        for its length: keys and positions a second time, where a row
//               has more than 4096 elements;
//   gradients of embeddings, index_put with accumulate: sorted indices, for
//               their length;
//   flash attention backward: the float sum of the query's gradient.
//
// The first two lie in PyTorch's own tables, so
// torch._C._cuda_clearCublasWorkspaces frees them. The sizes of the others are
// formulas, not measurements.
//
// Thread-safety: a plan is immutable; Take() may be called by any thread.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_WORKSPACES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_WORKSPACES_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

namespace cudasim::bridge {

enum class Workspace {
  kNone,
  kProduct,         // cuBLAS
  kProductAndBias,  // cuBLASLt if the bias is a vector
  kScaledProduct,   // cuBLASLt
  kConvolution,
  kSort,
  kEmbeddingBackward,
  kIndexPut,
  kFlashBackward,
};

class WorkspacePlan {
 public:
  explicit WorkspacePlan(const c10::OperatorHandle& op);

  // What this call needs, while its arguments are on the stack from `first` on.
  // kNone where no card is modelled.
  struct Need {
    Workspace kind = Workspace::kNone;
    size_t bytes = 0;  // for the length of the operator
  };
  Need NeedOf(const torch::jit::Stack& stack, size_t first) const {
    return kind_ == Workspace::kNone || !SimulatedDevice::Get().keeps_time()
               ? Need()
               : NeedSlow(stack, first);
  }

 private:
  Need NeedSlow(const torch::jit::Stack& stack, size_t first) const;

  Workspace kind_ = Workspace::kNone;
};

// For an operator that is captured, whose workspace is not modelled: cuBLAS
// makes its handle for the thread, unless it has one. Throws what torch throws
// where the capture forbids that.
void MakeHandle(const WorkspacePlan::Need& need, c10::DeviceIndex device);

// Takes it from the allocator, after the results were. Throws what the
// allocator throws.
void TakeWorkspaceSlow(const WorkspacePlan::Need& need,
                       c10::DeviceIndex device);
inline void TakeWorkspace(const WorkspacePlan::Need& need,
                          c10::DeviceIndex device) {
  if (need.kind != Workspace::kNone) TakeWorkspaceSlow(need, device);
}

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_WORKSPACES_H_
