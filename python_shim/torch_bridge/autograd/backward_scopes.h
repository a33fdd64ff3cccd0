// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_AUTOGRAD_BACKWARD_SCOPES_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_AUTOGRAD_BACKWARD_SCOPES_H_

namespace stratalloc {

// What autograd's backward allocates is charged to the layer whose forward it
// undoes.
//
// While a node computes, its scope is on top of the thread's scope stack: a
// callback for backward functions alone, which forward operators do not see. It
// reads the node's number and the number of the thread that made it. A node
// without a number gives a leaf its gradient, and has the leaf's scope.
//
// Between nodes the engine adds gradients up and runs hooks: what is allocated
// there, outside any scope, is charged to the scope of the node that ran.

// Called once the allocator is in place. Idempotent.
void FollowBackward();

// The engine works for a node on this thread, and no scope is open: one is,
// while it lives.
class BetweenNodes {
 public:
  BetweenNodes();
  ~BetweenNodes();
  BetweenNodes(const BetweenNodes&) = delete;
  BetweenNodes& operator=(const BetweenNodes&) = delete;

 private:
  bool entered_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_AUTOGRAD_BACKWARD_SCOPES_H_
