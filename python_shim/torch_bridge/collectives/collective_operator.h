// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COLLECTIVE_OPERATOR_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COLLECTIVE_OPERATOR_H_

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/custom_class.h>

#include <cstdint>

namespace stratalloc {

// An object of a C++ class that scripts know: a Work, a ProcessGroup.
using Holder = c10::intrusive_ptr<torch::CustomClassHolder>;

// The object in a box; null for everything else and for a boxed null.
Holder Unboxed(const c10::IValue& value);

// Does an operator communicate, so that its operands are used after it has
// returned and on streams that nobody sees? Told by its schema: a class of c10d
// among its arguments or results, or a process group by name. Worked out once
// per operator; immutable.
//
// Functional collectives and the coalesced ones of Python call these operators
// in turn and have no kernel at the CUDA key themselves.
class CollectiveOperator {
 public:
  explicit CollectiveOperator(const c10::FunctionSchema& schema);

  bool Communicates() const { return communicates_; }

  // The ProcessGroup among the arguments, before the call; null if the operator
  // takes none.
  Holder Group(const torch::jit::Stack& stack) const;
  // The caller does not ask for a Work: the backend has made the current stream
  // wait for everything by the time it returns without one.
  bool IsSynchronous(const torch::jit::Stack& stack) const;

  // The c10d::Work among the results, after the call; null if there is none.
  Holder Work(const torch::jit::Stack& stack) const;
  c10::ArrayRef<c10::IValue> Results(const torch::jit::Stack& stack) const;

 private:
  bool communicates_ = false;
  int group_ = -1;  // indices in the schema; -1: there is none
  int async_ = -1;
  int work_ = -1;
  size_t argument_count_;
  size_t result_count_;
};

// The schema hands a class of c10d in or out. Such schemas do not say which
// tensors are written.
bool NamesClassOfC10d(const c10::FunctionSchema& schema);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_COLLECTIVES_COLLECTIVE_OPERATOR_H_
