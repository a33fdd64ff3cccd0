// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_AUTOGRAD_LIFETIME_HINT_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_AUTOGRAD_LIFETIME_HINT_H_

#include "python_shim/bridge_api/blocks.h"
#include "python_shim/torch_bridge/base/evictable_copy.h"

namespace torch::autograd {
struct Node;
int get_current_graph_task_id();  // of graph_task.h, which includes the engine
}  // namespace torch::autograd

namespace stratalloc {

// What the autograd engine is doing on this thread, as a MallocHint:
// inside a backward node, inside one whose result becomes some leaf's .grad, or
// neither. Gradients live until zero_grad and are evictable, other results of
// backward die within the pass; the core keeps the two in different handles.
//
// A node counts as feeding a gradient when one of its edges reaches an
// AccumulateGrad, directly or through nodes that may hand on the memory they
// are given: nodes of one input whose results all have as many elements (a
// transpose, a reshape, a cast, a sum of equals), or are several and all
// smaller (the parts that cat and stack give back, each some leaf's .grad). Or
// a node right before the leaf that collects: of several inputs, one of which
// is as large as the leaf (the copies of a parameter that DataParallel made,
// whose gradients wait until the last is there). What such a node really does
// is not asked: one that computes a new tensor of equal size costs the wrong
// place for memory that dies soon, a missed one costs memory that cannot leave.
// At most 24 nodes are looked at per edge, 512 per allocation. The engine does
// not say which result an allocation belongs to: all of a node's live where
// gradients do, and those of `size` bytes as what feeds the leaf are called
// gradients, unless they would reach it in parts: so does what any node with
// small operands is given. The leaf's own node corrects that
// (backward_scopes.h).
//
// A copy of what may leave is a kind of its own (evictable_copy.h), unless it
// becomes a gradient.
//
// Outside backward the price is two thread-local reads. Any thread, no lock.
MallocHint LifetimeHintInBackward(size_t size);  // the rest of it
// Does the node give a leaf its gradient? By name: names compare across
// libraries.
bool IsAccumulateGrad(const torch::autograd::Node& node);
inline MallocHint CurrentLifetimeHint(size_t size) {
  // The engine sets its graph task around the node, and a number is cheaper to
  // ask for than a counted pointer (3 ns of a malloc and free of 85).
  if (__builtin_expect(torch::autograd::get_current_graph_task_id() < 0, 1)) {
    return copying_evictable ? MallocHint::kCopy : MallocHint::kNone;
  }
  return LifetimeHintInBackward(size);
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_AUTOGRAD_LIFETIME_HINT_H_
