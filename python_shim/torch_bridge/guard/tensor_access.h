// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TENSOR_ACCESS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TENSOR_ACCESS_H_

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tiering/engine/access.h"

namespace stratalloc {

// Which bytes an operator will touch: the arguments its schema has tensors in,
// worked out once per operator, and the walk over them at each call.

// One argument of an operator that holds tensors in some form.
struct TensorArgument {
  uint16_t index;  // in the schema
  bool written;    // the schema says so, or leaves it out (tensor_access.cc)
  // The kernel may resize it, which copies the storage's bytes whole.
  bool whole_storage;
};

// What functorch wraps (vmap, grad, jvp), one layer of it; nullptr for others.
const c10::TensorImpl* InsideFunctorch(const c10::TensorImpl& tensor);

class OperatorSignature {
 public:
  explicit OperatorSignature(const c10::FunctionSchema& schema);

  // False: nothing to guard.
  bool HasTensors() const { return has_tensors_; }
  const std::vector<TensorArgument>& arguments() const { return arguments_; }
  size_t argument_count() const { return argument_count_; }

 private:
  bool has_tensors_ = false;
  size_t argument_count_;
  std::vector<TensorArgument> arguments_;
};

// The evictable byte ranges of one call, by device. Lives on the stack of the
// guard; up to kInline ranges need no heap. Reads data pointers without the
// checks of the public accessors: those would copy a copy-on-write storage.
class AccessList {
 public:
  static constexpr size_t kInline = 16;

  // [lo, hi) as published by the core; ranges outside are dropped.
  AccessList(uint64_t lo, uint64_t hi) : lo_(lo), hi_(hi) {}

  // The arguments of the operator that is about to run on `stack`.
  void AddArguments(const OperatorSignature& signature,
                    const torch::jit::Stack& stack);
  // One argument, or one element of it.
  void AddValue(const c10::IValue& value, const TensorArgument& argument);
  void AddTensor(const c10::TensorImpl& tensor, bool written,
                 bool whole_storage);

  // Did any argument live on a CUDA device (evictable or not)?
  bool SawCuda() const { return device_ >= 0; }
  // The device of the first CUDA argument: where the kernel will run.
  int device() const { return device_; }
  bool SeveralDevices() const { return several_devices_; }

  const Access* data() const { return accesses_.data(); }
  std::span<const Access> All() const {
    return {accesses_.data(), accesses_.size()};
  }
  int size() const { return static_cast<int>(accesses_.size()); }
  int DeviceOf(int i) const { return devices_[static_cast<size_t>(i)]; }

 private:
  void AddStorage(const c10::TensorImpl& tensor, bool written,
                  bool whole_storage);

  const uint64_t lo_, hi_;
  int device_ = -1;
  bool several_devices_ = false;
  c10::SmallVector<Access, kInline> accesses_;
  c10::SmallVector<int8_t, kInline> devices_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_TENSOR_ACCESS_H_
