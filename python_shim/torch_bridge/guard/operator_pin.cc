// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/operator_pin.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <bitset>
#include <span>
#include <string>
#include <utility>

#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/base/conversions.h"

namespace stratalloc {
namespace {

// A refusal that nobody was told of.
class UntoldRefusal final : public c10::OutOfMemoryError {
 public:
  UntoldRefusal(const std::string& message, int device)
      : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, message),
        device_(device) {}
  int device() const { return device_; }

 private:
  int device_;
};

StreamId StreamOn(int device) {
  return ToStreamId(
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
}

std::string Told(int device, const char* name, std::span<const Access> accesses,
                 const std::string& message) {
  return core::TellRefusedOperator(device, StreamOn(device), name, accesses,
                                   message);
}

[[noreturn]] void Refuse(Error error, int device, const char* name,
                         std::span<const Access> accesses,
                         OperatorPin::IfRefused refused) {
  if (error.code == ErrorCode::kOutOfMemory) {
    // The cause is found by copies of the heap: not for what is tried again.
    if (refused == OperatorPin::IfRefused::kTriedAgain) {
      throw UntoldRefusal(error.message, device);
    }
    error = core::Refusal(std::move(error), device, StreamOn(device), accesses);
    error.message += Told(device, name, accesses, error.message);
  }
  ThrowError(error);
}

void Enter(int device, const char* name, std::span<const Access> accesses,
           OperatorPin::IfRefused refused) {
  // The stream matters to the bytes that are used on it; most operators of a
  // forward have none that could leave.
  StreamId stream = kDefaultStream;
  if (!accesses.empty()) stream = StreamOn(device);
  Status entered = core::EnterOperator(device, stream, name, accesses);
  if (C10_LIKELY(entered.has_value())) return;
  Refuse(std::move(entered).error(), device, name, accesses, refused);
}

[[gnu::noinline]] int EnterEachDevice(const char* name, const AccessList& all,
                                      OperatorPin::IfRefused refused) {
  std::bitset<128> seen;
  int entered = 0;
  try {
    for (int i = 0; i < all.size(); ++i) {
      const int device = all.DeviceOf(i);
      if (seen[static_cast<size_t>(device)]) continue;
      seen.set(static_cast<size_t>(device));
      c10::SmallVector<Access, AccessList::kInline> part;
      for (int j = i; j < all.size(); ++j) {
        if (all.DeviceOf(j) == device) part.push_back(all.data()[j]);
      }
      Enter(device, name, {part.data(), part.size()}, refused);
      ++entered;
    }
    if (!seen[static_cast<size_t>(all.device())]) {
      Enter(all.device(), name, {}, refused);
      ++entered;
    }
  } catch (...) {
    for (; entered > 0; --entered) core::LeaveOperator();
    throw;
  }
  return entered;
}

}  // namespace

OperatorPin::OperatorPin(const char* name, const AccessList& accesses,
                         IfRefused refused) {
  if (C10_UNLIKELY(accesses.SeveralDevices())) {
    entered_ = EnterEachDevice(name, accesses, refused);
    return;
  }
  int device = accesses.device();
  if (!accesses.SawCuda()) {
    c10::DeviceIndex current = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&current));
    device = current;
  }
  Enter(device, name, accesses.All(), refused);
  entered_ = 1;
}

void TellRefused(const char* name, const AccessList& accesses,
                 c10::OutOfMemoryError* error) {
  const auto* const untold = dynamic_cast<const UntoldRefusal*>(error);
  if (untold == nullptr) return;
  const int device = untold->device();
  const std::string message = untold->what_without_backtrace();
  std::string line = core::Refusal({ErrorCode::kOutOfMemory, message}, device,
                                   StreamOn(device), accesses.All())
                         .message;
  line += Told(device, name, accesses.All(), line);
  // What is behind the message.
  line.erase(0, std::min(line.size(), message.size()));
  line.erase(0, line.find_first_not_of(' '));
  if (!line.empty()) error->add_context(line);
}

}  // namespace stratalloc
