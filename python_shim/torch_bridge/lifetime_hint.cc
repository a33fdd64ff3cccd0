// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/lifetime_hint.h"

#include <torch/csrc/autograd/function.h>

#include <cstring>
#include <memory>
#include <typeinfo>

#include "python_shim/c_api.h"

namespace stratalloc {
namespace {

using torch::autograd::Node;

constexpr int kMaxReinterpretingNodes = 3;
constexpr char kAccumulateGrad[] = "N5torch8autograd14AccumulateGradE";
constexpr char kGenerated[] = "N5torch8autograd9generated";

// Nodes whose result is a view of their input, so that the bytes allocated
// before them are the gradient's bytes. Names as mangled after kGenerated: the
// header with the classes is 16 000 lines, and names compare across libraries.
constexpr const char* kReinterpretingNodes[] = {
    "9TBackward0E",          "13ViewBackward0E",    "19UnsafeViewBackward0E",
    "18TransposeBackward0E", "16PermuteBackward0E", "21ReshapeAliasBackward0E",
    "18UnsqueezeBackward0E", "16SqueezeBackward0E", "16SqueezeBackward1E",
    "16SqueezeBackward2E",   "14AliasBackward0E",   "15DetachBackward0E",
};

bool IsAccumulateGrad(const Node& node) {
  return std::strcmp(typeid(node).name(), kAccumulateGrad) == 0;
}

bool OnlyReinterprets(const Node& node) {
  const char* name = typeid(node).name();
  constexpr size_t kPrefix = sizeof(kGenerated) - 1;
  if (std::strncmp(name, kGenerated, kPrefix) != 0) return false;
  for (const char* known : kReinterpretingNodes) {
    if (std::strcmp(name + kPrefix, known) == 0) return true;
  }
  return false;
}

bool LeadsToAccumulateGrad(const Node* node) {
  for (int seen = 0; node != nullptr; ++seen) {
    if (IsAccumulateGrad(*node)) return true;
    if (seen == kMaxReinterpretingNodes || node->num_outputs() != 1 ||
        !OnlyReinterprets(*node)) {
      return false;
    }
    node = node->next_edge(0).function.get();
  }
  return false;
}

int HintOf(const Node& node) {
  // AccumulateGrad itself allocates when it cannot take the gradient over.
  if (IsAccumulateGrad(node)) return STRATALLOC_HINT_GRADIENT;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (LeadsToAccumulateGrad(edge.function.get())) {
      return STRATALLOC_HINT_GRADIENT;
    }
  }
  return STRATALLOC_HINT_BACKWARD;
}

}  // namespace

int LifetimeHintInBackward() {
  const std::shared_ptr<Node> node = torch::autograd::get_current_node();
  return node == nullptr ? STRATALLOC_HINT_NONE : HintOf(*node);
}

}  // namespace stratalloc
