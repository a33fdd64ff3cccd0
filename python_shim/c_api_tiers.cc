// SPDX-License-Identifier: Apache-2.0
// C API: scopes, tiers, the host's memory, the op guard, who keeps time, test
// hooks.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "accounting/scope_stack.h"
#include "accounting/scope_table.h"
#include "allocator/base/clock.h"
#include "allocator/base/host_time.h"
#include "allocator/operator_thread.h"
#include "python_shim/core.h"
#include "tiering/host/memory_limit.h"

namespace stratalloc {
namespace {

Result<Engine*> EngineOrError() {
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "nothing can be evicted: " + Core::Get().WhyNoEngine());
  }
  return engine;
}

// Evict and restore differ in one call.
int Move(int device, const stratalloc_range* ranges, int count, uint64_t* moved,
         stratalloc_error* error,
         Result<Bytes> (Engine::*verb)(DeviceAllocator&,
                                       std::span<const AddressRange>),
         Result<Bytes> (Engine::*all)()) {
  if (moved != nullptr) *moved = 0;
  Result<Engine*> engine = EngineOrError();
  if (!engine) return ToC(engine.error(), error);
  if (device < 0) {
    Result<Bytes> bytes = ((*engine)->*all)();
    if (!bytes) return ToC(bytes.error(), error);
    if (moved != nullptr) *moved = *bytes;
    return 0;
  }
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  if (*allocator == nullptr) return 0;
  std::vector<AddressRange> wanted;
  for (int i = 0; ranges != nullptr && i < count; ++i) {
    if (ranges[i].bytes > 0) {
      wanted.push_back({ranges[i].address, ranges[i].bytes});
    }
  }
  // Named but empty is nothing, not everything.
  if (ranges != nullptr && wanted.empty()) return 0;
  Result<Bytes> bytes = ((*engine)->*verb)(**allocator, wanted);
  if (!bytes) return ToC(bytes.error(), error);
  if (moved != nullptr) *moved = *bytes;
  return 0;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

void stratalloc_listen_to_host(void (*checksummed)(uint64_t bytes),
                               void (*let_go)(uint64_t token),
                               void (*went_on)(uint64_t token)) {
  // Never freed: another thread may be telling the one before.
  stratalloc::host_time_listener.store(
      new stratalloc::HostTimeListener{checksummed, let_go, went_on});
}

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
int stratalloc_scope_pop(void) { return PopScope(); }
uint32_t stratalloc_scope_current(int* category, int* lifetime) {
  const ScopeFrame& frame = CurrentScope();
  if (category != nullptr) *category = Raw(frame.category);
  if (lifetime != nullptr) *lifetime = Raw(frame.lifetime);
  return Raw(frame.scope);
}

double stratalloc_bench_scope_pair_ns(int pairs) {
  const std::int64_t began = NowNs();
  for (int i = 0; i < pairs; ++i) {
    PushScope({});
    PopScope();
  }
  return static_cast<double>(NowNs() - began) / std::max(pairs, 1);
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

int stratalloc_evict(int device, const stratalloc_range* ranges, int count,
                     uint64_t* moved, stratalloc_error* error) {
  return Move(device, ranges, count, moved, error, &Engine::Evict,
              &Engine::EvictAll);
}
int stratalloc_restore(int device, const stratalloc_range* ranges, int count,
                       uint64_t* moved, stratalloc_error* error) {
  return Move(device, ranges, count, moved, error, &Engine::Restore,
              &Engine::RestoreAll);
}

int stratalloc_may_leave(uint64_t address) {
  DeviceAllocator* device = Allocator::Get().FindByAddress(address);
  return device != nullptr && device->MayLeave(address) ? 1 : 0;
}

void stratalloc_host_memory(const char* root, uint64_t* total,
                            uint64_t* available) {
  *total = TotalHostMemory(root);
  *available = AvailableHostMemory(root);
}

int stratalloc_residency(const void* ptr, uint64_t bytes, uint64_t tiers[3],
                         stratalloc_error* error) {
  tiers[0] = tiers[1] = tiers[2] = 0;
  if (Status here = Core::Get().NotInAFork(); !here) return ToC(here, error);
  const Address address = reinterpret_cast<Address>(ptr);
  DeviceAllocator* device = Allocator::Get().FindByAddress(address);
  if (device == nullptr) {
    char at[32];
    std::snprintf(at, sizeof(at), "%#llx",
                  static_cast<unsigned long long>(address));
    return ToC(
        Error{ErrorCode::kNotFound,
              std::string("stratalloc: no block of ours at ") + at +
                  ": the memory is another allocator's, or has been freed"},
        error);
  }
  const std::array<Bytes, kTiers> here = device->TiersOf(address, bytes);
  std::copy(here.begin(), here.end(), tiers);
  return 0;
}

int stratalloc_operator_enter(int, uint64_t stream, const char* name,
                              const stratalloc_access* accesses, int count,
                              stratalloc_error* error) {
  Engine* engine = Core::Get().engine();
  if (engine == nullptr) {
    OperatorThread::ThisThread().Enter();
    return 0;
  }
  // Few operators have more arguments than this; the rest pay for a vector.
  constexpr int kInline = 16;
  Access few[kInline];
  std::vector<Access> many;
  Access* list = few;
  if (count > kInline) {
    many.resize(static_cast<std::size_t>(count));
    list = many.data();
  }
  for (int i = 0; i < count; ++i) {
    list[i] = {accesses[i].address, accesses[i].bytes,
               accesses[i].written != 0};
  }
  return ToC(engine->EnterOperator(StreamId{stream}, name,
                                   {list, static_cast<std::size_t>(count)}),
             error);
}
void stratalloc_operator_leave(void) {
  if (Engine* engine = Core::Get().engine()) {
    engine->LeaveOperator();
  } else {
    OperatorThread::ThisThread().Leave();
  }
}

void stratalloc_operator_into_call(void) {
  if (Engine* engine = Core::Get().engine()) {
    engine->LeaveIntoCall();
  } else {
    OperatorThread::ThisThread().LeaveIntoCall();
  }
}

void stratalloc_call_leave(void) {
  if (Engine* engine = Core::Get().engine()) {
    engine->LeaveCall();
  } else {
    OperatorThread::ThisThread().LeaveCall();
  }
}

int stratalloc_test_hook(const char* name, const char* value,
                         stratalloc_error* error) {
  Result<Engine*> engine = EngineOrError();
  if (!engine) return ToC(engine.error(), error);
  return ToC((*engine)->TestHook(name, value), error);
}

}  // extern "C"
