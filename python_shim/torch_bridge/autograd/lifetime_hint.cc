// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/autograd/lifetime_hint.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <typeinfo>

namespace stratalloc {
namespace {

using torch::autograd::Edge;
using torch::autograd::InputMetadata;
using torch::autograd::Node;

// An einsum puts about ten views between a weight and its product.
constexpr int kMaxNodes = 24;
constexpr int kMaxNodesInAll = 512;  // cat can have a thousand edges
constexpr int64_t kUnknown = -1;

// Of the gradient that arrives at an edge.
struct Extent {
  int64_t elements = kUnknown;
  int64_t bytes = kUnknown;
};

// kUnknown where torch does not say.
Extent ExtentInto(const Node& node, uint32_t input) {
  if (input >= node.num_inputs()) return {};
  const InputMetadata& metadata = node.input_metadata(input);
  if (metadata.was_default_constructed() || metadata.is_cpp_nested_tensor()) {
    return {};
  }
  int64_t elements = 1;
  for (const c10::SymInt& size : metadata.shape_as_dim_vector()) {
    const std::optional<int64_t> known = size.maybe_as_int();
    if (!known.has_value()) return {};
    elements *= *known;
  }
  return {elements,
          elements * static_cast<int64_t>(metadata.dtype().itemsize())};
}

// How memory gets from one node to the next, and so to a leaf.
enum class Way : unsigned char { kNone, kInParts, kAsItIs };

// May what arrives at this node go on to its edges as it is, or in parts? A
// cast counts: what it is given may wait for it through the whole pass, where
// the cast of a weight is older than its use (autocast's cache).
Way HandsOn(const Node& node) {
  if (node.num_inputs() != 1) return Way::kNone;
  const Extent in = ExtentInto(node, 0);
  bool same = in.elements != kUnknown;
  // One smaller result alone was computed; of several it may be a slice.
  bool parts = same && node.num_outputs() > 1;
  for (const Edge& edge : node.next_edges()) {
    if (!edge.is_valid()) continue;
    const Extent out = ExtentInto(*edge.function, edge.input_nr);
    if (out.elements == kUnknown) return Way::kNone;
    same = same && (out.elements == in.elements || out.bytes == in.bytes);
    parts = parts && out.elements < in.elements;
  }
  return same ? Way::kAsItIs : parts ? Way::kInParts : Way::kNone;
}

// The edge on which a node of several inputs may hand on what arrives at one of
// them, as it is or added to others: the first of the same extent. Null if
// there is none. Counted from the input's own number, because where such a node
// collects gradients from several copies of its tensors (DataParallel's
// replicas) the inputs of each copy are in the order of the edges.
const Edge* CollectsFor(const Node& node, uint32_t input) {
  const Extent in = ExtentInto(node, input);
  const uint32_t edges = node.num_outputs();
  if (in.elements == kUnknown) return nullptr;
  for (uint32_t i = 0; i < edges; ++i) {
    const Edge& edge = node.next_edge((input + i) % edges);
    if (!edge.is_valid()) continue;
    const Extent out = ExtentInto(*edge.function, edge.input_nr);
    if (out.elements == in.elements && out.bytes == in.bytes) return &edge;
  }
  return nullptr;
}

// Of the ways to a leaf the one that keeps most. `left`: how many nodes may
// still be looked at.
Way WayToLeaf(const Edge& edge, int* left) {
  if (!edge.is_valid() || (*left)-- <= 0) return Way::kNone;
  const Node& node = *edge.function;
  if (IsAccumulateGrad(node)) return Way::kAsItIs;
  if (node.num_inputs() > 1) {
    // All that arrives there waits for the last of it. Only right before the
    // leaf: what activations are put together from dies with them.
    const Edge* on = CollectsFor(node, edge.input_nr);
    return on != nullptr && IsAccumulateGrad(*on->function) ? Way::kAsItIs
                                                            : Way::kNone;
  }
  const Way here = HandsOn(node);
  if (here == Way::kNone) return here;
  Way best = Way::kNone;
  for (const Edge& next : node.next_edges()) {
    best = std::max(best, std::min(here, WayToLeaf(next, left)));
    if (best == here) break;
  }
  return best;
}

bool IsOf(const Extent& extent, size_t size) {
  return extent.bytes == kUnknown || extent.bytes == static_cast<int64_t>(size);
}

// `size`: of the memory asked for.
MallocHint HintOf(const Node& node, size_t size) {
  // AccumulateGrad itself allocates when it cannot take the gradient over, and
  // the leaf's hooks run.
  if (IsAccumulateGrad(node)) {
    return IsOf(ExtentInto(node, 0), size) ? MallocHint::kGradient
                                           : MallocHint::kBesideGradient;
  }
  int in_all = kMaxNodesInAll;
  bool reaches = false;
  for (const Edge& edge : node.next_edges()) {
    // A share for each: a walk back through activations ends somewhere, too,
    // and must not use up what the way to the weight needs.
    const int share = std::min(kMaxNodes, in_all);
    int left = share;
    const Way way = WayToLeaf(edge, &left);
    if (way != Way::kNone) {
      // Any node with small operands looks as if it gave back parts: a Linear
      // with fewer features than rows. Only its leaf can tell.
      if (way == Way::kAsItIs &&
          IsOf(ExtentInto(*edge.function, edge.input_nr), size)) {
        return MallocHint::kGradient;
      }
      reaches = true;
    }
    in_all -= share - std::max(left, 0);
  }
  if (reaches) return MallocHint::kBesideGradient;
  return copying_evictable ? MallocHint::kCopy : MallocHint::kBackward;
}

}  // namespace

bool IsAccumulateGrad(const Node& node) {
  return std::strcmp(typeid(node).name(),
                     "N5torch8autograd14AccumulateGradE") == 0;
}

MallocHint LifetimeHintInBackward(size_t size) {
  const auto node = torch::autograd::get_current_node();
  return node == nullptr ? MallocHint::kNone : HintOf(*node, size);
}

}  // namespace stratalloc
