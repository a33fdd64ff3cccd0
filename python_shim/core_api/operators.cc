// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core_api/operators.h"

#include "allocator/operator_thread.h"
#include "python_shim/core.h"
#include "python_shim/refusal_text.h"

namespace stratalloc::core {

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

Error Refusal(Error error, int device) {
  AddHolders(&error, static_cast<DeviceIndex>(device));
  return error;
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
