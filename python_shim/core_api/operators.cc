// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core_api/operators.h"

#include <utility>

#include "allocator/operator_thread.h"
#include "python_shim/core.h"
#include "python_shim/holders_text.h"

namespace stratalloc::core {

bool MayLeave(Address address) {
  DeviceAllocator* device = Allocator::Get().FindByAddress(address);
  return device != nullptr && device->MayLeave(address);
}

Status EnterOperator(int device, StreamId stream, const char* name,
                     std::span<const Access> accesses) {
  if (Engine* engine = Core::Get().engine()) {
    Status entered = engine->EnterOperator(stream, name, accesses);
    if (__builtin_expect(entered.has_value(), 1)) return entered;
    return tl::unexpected(WithHolders(std::move(entered).error(),
                                      static_cast<DeviceIndex>(device)));
  }
  OperatorThread::ThisThread().Enter();
  return {};
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
