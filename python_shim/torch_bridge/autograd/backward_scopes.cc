// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/autograd/backward_scopes.h"

#include <ATen/SequenceNumber.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <typeinfo>

#include "python_shim/bridge_api/nodes.h"
#include "python_shim/torch_bridge/autograd/lifetime_hint.h"

namespace stratalloc {
namespace {

using torch::autograd::Node;

// Where a tensor's storage is; 0 of what has none of its own. Without the
// checks of the public accessors: those would copy a copy-on-write storage.
struct Memory {
  Address address = 0;
  Bytes bytes = 0;
};
Memory MemoryOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return {reinterpret_cast<Address>(storage.data()), storage.nbytes()};
}

const at::Tensor& LeafOf(const Node& node) {
  return static_cast<const torch::autograd::AccumulateGrad&>(node).variable;
}

void Enter(const Node& node) {
  if (IsAccumulateGrad(node)) {
    core::EnterNodeOfLeaf(MemoryOf(LeafOf(node)).address);
  } else {
    core::EnterNode(node.thread_id(), node.sequence_nr());
  }
}

// A sparse gradient is its indices and its values.
void ChargeParts(const at::Tensor& gradient) {
  const auto* const sparse =
      dynamic_cast<const at::SparseTensorImpl*>(gradient.unsafeGetTensorImpl());
  if (sparse == nullptr) return;
  for (const at::Tensor& part : {sparse->indices(), sparse->values()}) {
    const Memory memory = MemoryOf(part);
    core::PartOfGradient(memory.address, memory.bytes);
  }
}

std::unique_ptr<at::ObserverContext> OnNode(const at::RecordFunction& call) {
  if (call.seqNr() >= 0) {
    core::EnterNode(call.forwardThreadId(),
                    static_cast<std::uint64_t>(call.seqNr()));
    return nullptr;
  }
  const auto node = torch::autograd::get_current_node();
  if (node != nullptr) {
    Enter(*node);
  } else {
    core::EnterNodeOfLeaf(0);
  }
  return nullptr;
}

void OnNodeEnd(const at::RecordFunction& call, at::ObserverContext*) {
  if (call.seqNr() >= 0) return core::LeaveNode();
  const auto node = torch::autograd::get_current_node();
  Memory gradient;
  if (node != nullptr && IsAccumulateGrad(*node)) {
    const at::Tensor& grad = LeafOf(*node).grad();
    gradient = MemoryOf(grad);
    if (gradient.address == 0 && grad.defined()) ChargeParts(grad);
  }
  core::LeaveNodeOfLeaf(gradient.address, gradient.bytes);
}

}  // namespace

void FollowBackward() {
  static const bool once = [] {
    core::NumberNodes(&at::sequence_number::peek,
                      &at::RecordFunction::currentThreadId);
    at::addGlobalCallback(at::RecordFunctionCallback(&OnNode, &OnNodeEnd)
                              .scopes({at::RecordScope::BACKWARD_FUNCTION}));
    return true;
  }();
  static_cast<void>(once);
}

BetweenNodes::BetweenNodes() {
  if (core::InsideScope()) return;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return;
  Enter(*node);
  entered_ = true;
}

BetweenNodes::~BetweenNodes() {
  if (entered_) core::LeaveNode();
}

}  // namespace stratalloc
