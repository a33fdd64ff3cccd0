// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/operators.h"

#include <set>
#include <vector>

#include "accounting/scope_stack.h"
#include "allocator/blocks/operator_thread.h"
#include "python_shim/core/core.h"
#include "python_shim/refusals/add_cause.h"
#include "python_shim/refusals/refusals.h"

namespace stratalloc::core {
namespace {

// Handles of the device that may leave and hold some of these bytes, once each.
std::vector<Address> HandlesOf(DeviceAllocator& device,
                               std::span<const Access> accesses) {
  std::set<Address> handles;
  for (const Access& access : accesses) {
    Address at = access.address;
    while (at < access.address + access.bytes && device.Contains(at)) {
      const HandleRef handle = device.table().RefOf(at);
      if (!handle.region->evictable) break;
      handles.insert(handle.address());
      at = handle.address() + handle.bytes();
    }
  }
  return {handles.begin(), handles.end()};
}

// On top of this thread's scopes.
RefusedRequest RefusedOperator(DeviceAllocator& device, StreamId stream,
                               std::span<const Access> accesses) {
  const ScopeFrame frame = CurrentScope();
  RefusedRequest refused{.request = {.stream = stream,
                                     .lifetime = frame.lifetime,
                                     .charge = {frame.payer, frame.category}},
                         .operands = HandlesOf(device, accesses),
                         .is_operator = true};
  for (const Address operand : refused.operands) {
    refused.request.size += device.table().RefOf(operand).bytes();
  }
  return refused;
}

}  // namespace

bool MayLeave(Address address) {
  DeviceAllocator* device = Allocator::Get().FindByAddress(address);
  return device != nullptr && device->MayLeave(address);
}

Status EnterOperator(int, StreamId stream, const char* name,
                     std::span<const Access> accesses) {
  if (Engine* engine = Core::Get().engine()) {
    return engine->EnterOperator(stream, name, accesses);
  }
  OperatorThread::ThisThread().Enter();
  return {};
}

Error Refusal(Error error, int device, StreamId stream,
              std::span<const Access> accesses) {
  DeviceAllocator* const opened = Core::Get().Opened(device).value_or(nullptr);
  if (opened != nullptr) {
    AddCause(&error, *opened, RefusedOperator(*opened, stream, accesses));
  }
  return error;
}

std::string TellRefusedOperator(int device, StreamId stream, const char* name,
                                std::span<const Access> accesses,
                                const std::string& message) {
  DeviceAllocator* const opened = Core::Get().Opened(device).value_or(nullptr);
  if (opened == nullptr) return "";
  const RefusedRequest refused = RefusedOperator(*opened, stream, accesses);
  const Result<MemoryInfo> card = opened->device().GetMemoryInfo();
  opened->RecordOutOfMemory(stream, refused.request.size,
                            refused.request.charge, card ? card->free : 0);
  return Refusals::Tell(device, refused, name, message);
}

void LeaveOperator() {
  if (Engine* engine = Core::Get().engine()) {
    engine->LeaveOperator();
  } else {
    OperatorThread::ThisThread().Leave();
  }
}

void LeaveIntoCall() {
  if (Engine* engine = Core::Get().engine()) {
    engine->LeaveIntoCall();
  } else {
    OperatorThread::ThisThread().LeaveIntoCall();
  }
}

void LeaveCall() {
  if (Engine* engine = Core::Get().engine()) {
    engine->LeaveCall();
  } else {
    OperatorThread::ThisThread().LeaveCall();
  }
}

bool InsideOperator() {
  return OperatorThread::ThisThread().KeepsWhatItAllocates();
}

}  // namespace stratalloc::core
