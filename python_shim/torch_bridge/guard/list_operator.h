// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LIST_OPERATOR_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LIST_OPERATOR_H_

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace stratalloc {

// May an operator run in slices of its lists, one after the other, and how are
// its arguments cut? Worked out once per operator from its schema; immutable.
//
// That an operator acts element by element is nowhere in a schema (`cat` and
// the recurrent networks take lists too), so three families are known by name;
// list_operator_test.py classifies every list operator of this torch minor.
class ListOperator {
 public:
  explicit ListOperator(const c10::FunctionSchema& schema);

  bool MayBeSliced() const { return !sliced_.empty(); }
  // `cat` and `cat.out`: the one result may be made element by element
  // (joined_list.h), once the whole call was refused.
  bool Joins() const { return joins_; }
  // It makes a list of new tensors, one per element; else it makes nothing.
  bool ReturnsList() const { return returns_list_; }
  // It reads nothing that it writes: a call that failed for want of memory may
  // run once more, in smaller slices.
  bool MayRunAgain() const { return may_run_again_; }
  // Indices in the schema of the lists of tensors, in order.
  const std::vector<uint16_t>& tensor_lists() const { return tensor_lists_; }

  // Elements of the lists in this call; 0 if it cannot be sliced: fewer than
  // two elements, or lists that do not match, about which the kernel has its
  // own to say.
  size_t ElementsOf(c10::ArrayRef<c10::IValue> arguments) const;
  // The arguments for `count` elements from `first` on. Empty lists stay empty
  // (what an optimizer does without), and what is not a list stays whole.
  std::vector<c10::IValue> Slice(c10::ArrayRef<c10::IValue> arguments,
                                 size_t first, size_t count) const;

 private:
  std::vector<uint16_t> sliced_;  // indices in the schema
  std::vector<uint16_t> tensor_lists_;
  bool joins_ = false;
  bool returns_list_ = false;
  bool may_run_again_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_GUARD_LIST_OPERATOR_H_
