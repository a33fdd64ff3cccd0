// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/nodes.h"

#include <atomic>
#include <optional>

#include "accounting/node_scopes.h"
#include "accounting/scope_stack.h"
#include "python_shim/core/core.h"

namespace stratalloc::core {
namespace {

constinit std::atomic<std::uint64_t> without_scope{0};

void Enter(ScopeId scope) {
  PushScope({.scope = scope,
             .category = Category::kActivation,
             .lifetime = LifetimeClass::kTransient,
             .backward = true});
}

// Whose live block this address is in; nullptr: nobody's.
DeviceAllocator* Find(Address address, BlockView* block) {
  if (address == 0 || Core::Get().abandoned()) return nullptr;
  DeviceAllocator* const device = Allocator::Get().FindByAddress(address);
  return device != nullptr && device->FindLive(address, block) ? device
                                                               : nullptr;
}

void ChargeGradient(ScopeId scope, Address gradient, Bytes bytes) {
  BlockView block;
  DeviceAllocator* const device = Find(gradient, &block);
  if (device == nullptr) return;
  const bool alone = block.address == gradient && block.requested == bytes;
  if (block.charge.category == Category::kGradient && !alone) return;
  device->Relabel(gradient, 1, {scope, Category::kGradient},
                  /*keep_category=*/false);
}

}  // namespace

void NumberNodes(std::uint64_t (*next)(), std::uint64_t (*thread)()) {
  static const NodeScopes::Numbers numbers{next, thread};
  NodeScopes::Use(&numbers);
}

void EnterNode(std::uint64_t thread, std::uint64_t number) {
  std::optional<ScopeId> scope;
  if (!Core::Get().abandoned()) scope = NodeScopes::Find(thread, number);
  if (!scope) without_scope.fetch_add(1, std::memory_order_relaxed);
  Enter(scope.value_or(kRootScope));
}

void EnterNodeOfLeaf(Address memory) {
  BlockView block;
  DeviceAllocator* const device = Find(memory, &block);
  Enter(device != nullptr ? block.charge.scope : kRootScope);
}

void LeaveNode() { PopScope(); }

void LeaveNodeOfLeaf(Address gradient, Bytes bytes) {
  const ScopeId scope = CurrentScope().scope;
  PopScope();
  ChargeGradient(scope, gradient, bytes);
}

void PartOfGradient(Address part, Bytes bytes) {
  ChargeGradient(CurrentScope().scope, part, bytes);
}

bool InsideScope() { return ScopeDepth() > 0; }

std::uint64_t NodesWithoutScope() {
  return without_scope.load(std::memory_order_relaxed);
}

}  // namespace stratalloc::core
