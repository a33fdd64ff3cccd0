// SPDX-License-Identifier: Apache-2.0
#include "tests/system/stress/planned_faults.h"

#include <iterator>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kSystemCall = 304,
              kInvalidHandle = 400, kNotReady = 600, kTooManyResources = 701,
              kAlreadyPinned = 712, kNotPinned = 713, kNotSupported = 801,
              kUnknown = 999;

// What any call may answer, and one that is a call's own.
constexpr int kUsual[] = {kInvalidValue, kOutOfMemory, kNotReady, kUnknown};
struct Call {
  const char* name;
  int own;
};
constexpr Call kCalls[] = {
    {"cuMemCreate", kNotSupported},
    {"cuMemRelease", kInvalidHandle},
    {"cuMemMap", kInvalidHandle},
    {"cuMemUnmap", kInvalidHandle},
    {"cuMemSetAccess", kNotReady},
    {"cudaMemGetInfo", kInvalidHandle},
    {"cudaMemcpyAsync", kInvalidHandle},
    {"cudaHostRegister", kAlreadyPinned},
    {"cudaHostUnregister", kNotPinned},
    {"cudaEventCreateWithFlags", kSystemCall},
    {"cudaEventRecord", kInvalidHandle},
    {"cudaEventQuery", kInvalidHandle},
    {"cudaEventSynchronize", kInvalidHandle},
    {"cudaStreamQuery", kInvalidHandle},
    {"cudaStreamWaitEvent", kInvalidHandle},
    {"cudaStreamSynchronize", kInvalidHandle},
    {"cudaStreamIsCapturing", kInvalidHandle},
    {"cudaThreadExchangeStreamCaptureMode", kUnknown},
    {"cudaDeviceSynchronize", kSystemCall},
    {"cudaDeviceEnablePeerAccess", kNotSupported},
    {"cuLaunchKernel", kTooManyResources},
    {"cuCtxGetDevice", kUnknown},
    {"cuCtxPushCurrent", kUnknown},
    {"cuCtxPopCurrent", kUnknown},
};
// What is only tried at opening is given back at once.
constexpr Call kOpening[] = {
    {"cuDeviceGet", kUnknown},
    {"cuDeviceGetAttribute", kUnknown},
    {"cuDevicePrimaryCtxRetain", kUnknown},
    {"cuMemGetAllocationGranularity", kNotSupported},
    {"cuMemAddressReserve", kNotSupported},
    {"cudaMemGetInfo", kUnknown},
    {"cuMemCreate", kNotSupported},
    {"cuMemMap", kNotSupported},
    {"cuMemSetAccess", kNotSupported},
    {"cudaStreamCreateWithFlags", kSystemCall},
    {"cudaHostRegister", kNotSupported},
    {"cuModuleLoadData", kNotSupported},
    {"cuModuleGetFunction", kSystemCall},
    {"cuModuleGetGlobal", kSystemCall},
    {"cuLaunchKernel", kTooManyResources},
    {"cudaMemcpyAsync", kUnknown},
    {"cudaStreamSynchronize", kUnknown},
    {"cudaEventCreateWithFlags", kSystemCall},
    {"cuCtxGetDevice", kUnknown},
    {"cuCtxPushCurrent", kUnknown},
};

// A driver that answers neither has lost the device (TieredDevice::Settle).
bool IsWait(const std::string& call) {
  return call == "cudaStreamSynchronize" || call == "cudaDeviceSynchronize";
}

int ErrorOf(const Call& call, std::uint64_t dice) {
  const std::uint64_t which = dice % (std::size(kUsual) + 1);
  return which < std::size(kUsual) ? kUsual[which] : call.own;
}

}  // namespace

bool PlannedFaults::Plan(std::uint64_t dice, long nth, bool forever) {
  const Call& call = kCalls[dice % std::size(kCalls)];
  return PlanOne(call.name, ErrorOf(call, dice / std::size(kCalls)), nth,
                 forever);
}

bool PlannedFaults::PlanOpening(std::uint64_t dice, long nth, bool forever) {
  const Call& call = kOpening[dice % std::size(kOpening)];
  return PlanOne(call.name, ErrorOf(call, dice / std::size(kOpening)), nth,
                 forever);
}

bool PlannedFaults::PlanOne(const char* call, int error, long nth,
                            bool forever) {
  std::lock_guard lock(mutex_);
  for (const Planned& other : pending_) {
    if (IsWait(call) && IsWait(other.call) && std::string(call) != other.call) {
      return true;
    }
  }
  const long at = cudasim_calls(call) + nth;
  if (cudasim_fail(call, nth, error, forever ? 1 : 0) != 0) return false;
  pending_.push_back({call, at});
  ++figures_[call].planned;
  return true;
}

void PlannedFaults::Clear() {
  std::lock_guard lock(mutex_);
  cudasim_clear_faults();
  for (const Planned& planned : pending_) {
    if (cudasim_calls(planned.call) >= planned.at) {
      ++figures_[planned.call].struck;
    }
  }
  pending_.clear();
}

bool PlannedFaults::Explains(const Error& error) const {
  std::lock_guard lock(mutex_);
  for (const auto& [call, figures] : figures_) {
    if (error.message.find(call) != std::string::npos) return true;
  }
  return false;
}

PlannedFaults::ByCall PlannedFaults::figures() const {
  std::lock_guard lock(mutex_);
  return figures_;
}

}  // namespace stratalloc
