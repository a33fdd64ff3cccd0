// SPDX-License-Identifier: Apache-2.0
// C API: scopes.
#include <cstdint>
#include <string>

#include "accounting/ledger.h"
#include "accounting/scope_stack.h"
#include "accounting/scope_table.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

using namespace stratalloc;  // the C face of this namespace

extern "C" {

uint32_t stratalloc_scope_intern(const char* path) {
  return Raw(InternScope(path));
}
char* stratalloc_scope_name(uint32_t scope) {
  return ToC(ScopeName(ScopeId{scope}));
}
void stratalloc_scope_push(uint32_t scope, int category, int lifetime) {
  PushScope({ScopeId{scope}, static_cast<Category>(category),
             static_cast<LifetimeClass>(lifetime)});
}
int stratalloc_scope_enter_module(uint32_t scope) {
  const int below = ScopeDepth();
  PushScope({.scope = ScopeId{scope},
             .category = Category::kActivation,
             .lifetime = LifetimeClass::kTransient,
             .module = true});
  return below;
}
void stratalloc_scope_leave_module(int below) { PopScopesTo(below); }
int stratalloc_scope_pop(void) { return PopScope(); }
int stratalloc_scope_depth(void) { return ScopeDepth(); }
int stratalloc_scope_recategorize(uint32_t scope, int category) {
  if (ScopeDepth() == 0 || Raw(CurrentScope().scope) != scope) return 0;
  SetFrameCategory(static_cast<Category>(category));
  return 1;
}
uint64_t stratalloc_scope_owned(uint32_t scope) {
  // Who held the ledger's lock did not come along.
  if (Core::Get().abandoned()) return 0;
  return Ledger::Get().Owned(ScopeId{scope});
}
uint32_t stratalloc_scope_current(int* category, int* lifetime) {
  const ScopeFrame& frame = CurrentScope();
  if (category != nullptr) *category = Raw(frame.category);
  if (lifetime != nullptr) *lifetime = Raw(frame.lifetime);
  return Raw(frame.scope);
}

int stratalloc_limit_scope(int device, const char* path, uint64_t bytes,
                           stratalloc_error* error) {
  const Result<DeviceAllocator*> opened = Core::Get().Device(device);
  if (!opened) return ToC(opened.error(), error);
  const auto index = static_cast<DeviceIndex>(device);
  bool found = true;
  (*opened)->ChangeScopeLimits([&] {
    if (bytes == UINT64_MAX) {
      found = Ledger::Get().Unlimit(index, path);
    } else {
      Ledger::Get().Limit(index, path, bytes);
    }
    return Ledger::Get().HasLimits(index);
  });
  if (found) return 0;
  return ToC(Error{ErrorCode::kNotFound, std::string(path) +
                                             " has no limit on device " +
                                             std::to_string(device)},
             error);
}

int stratalloc_relabel(const void* ptr, uint64_t bytes, uint32_t scope,
                       int category) {
  const Address address = reinterpret_cast<Address>(ptr);
  DeviceAllocator* device = Allocator::Get().FindByAddress(address);
  if (device == nullptr || Core::Get().abandoned()) {
    return STRATALLOC_NOT_FOUND;
  }
  device->Relabel(
      address, bytes,
      {ScopeId{scope},
       category < 0 ? Category::kUnknown : static_cast<Category>(category)},
      category < 0);
  return 0;
}

int stratalloc_adopt(const void* ptr, uint32_t scope, int category) {
  const Address address = reinterpret_cast<Address>(ptr);
  DeviceAllocator* device = Allocator::Get().FindByAddress(address);
  BlockView block;
  if (device == nullptr || Core::Get().abandoned() ||
      !device->FindLive(address, &block) || block.charge != Charge{}) {
    return STRATALLOC_NOT_FOUND;
  }
  device->Relabel(address, 1, {ScopeId{scope}, static_cast<Category>(category)},
                  /*keep_category=*/false);
  return 0;
}

}  // extern "C"
