// SPDX-License-Identifier: Apache-2.0
//
// What the bridge needs to know about one operator, read from its schema once
// at installation so that a call only follows indices.
//
// Thread-safety: immutable after construction. Lifetime: as long as the
// registered kernel.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_OPERATOR_PLAN_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_OPERATOR_PLAN_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace cudasim::bridge {

struct OperatorPlan {
  explicit OperatorPlan(const c10::OperatorHandle& op);

  struct TensorArgument {
    int index;   // among the operator's arguments
    bool write;  // the schema says (a!)
  };

  std::string name;  // aten::add.out
  int arguments = 0;
  int returns = 0;
  // Tensor, Tensor?, Tensor[], Tensor?[] arguments in order.
  std::vector<TensorArgument> tensors;
  // Per return: the argument it is by the schema's (a!), or -1.
  std::vector<int> return_argument;
  int generator = -1;  // Generator? argument, or -1
  int device = -1;     // Device? argument, or -1
  // Returns that are CPU tensors on a device too, one bit each.
  unsigned host_returns = 0;
  bool stays_on_host(int i) const { return (host_returns >> i & 1) != 0; }
  // Any argument is written.
  bool writes = false;
  // Tensors of one or more dimensions may be on different devices.
  bool mixes_devices = false;
};

// A return that is a view of an argument (alias without a write): the operator
// only rearranges sizes, its own CUDA kernel does that without a launch.
bool ReturnsView(const c10::FunctionSchema& schema);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_OPERATOR_PLAN_H_
