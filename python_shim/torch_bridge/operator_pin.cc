// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/operator_pin.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <bitset>
#include <span>
#include <utility>

#include "python_shim/torch_bridge/bridge_error.h"
#include "python_shim/torch_bridge/conversions.h"

namespace stratalloc {
namespace {

void Enter(int device, const char* name, std::span<const Access> accesses) {
  // The stream matters to the bytes that are used on it; most operators of a
  // forward have none that could leave.
  StreamId stream = kDefaultStream;
  if (!accesses.empty()) {
    stream = ToStreamId(
        c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
  }
  Status entered = core::EnterOperator(device, stream, name, accesses);
  if (C10_LIKELY(entered.has_value())) return;
  ThrowError(core::Refusal(std::move(entered).error(), device));
}

[[gnu::noinline]] int EnterEachDevice(const char* name, const AccessList& all) {
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
      Enter(device, name, {part.data(), part.size()});
      ++entered;
    }
    if (!seen[static_cast<size_t>(all.device())]) {
      Enter(all.device(), name, {});
      ++entered;
    }
  } catch (...) {
    for (; entered > 0; --entered) core::LeaveOperator();
    throw;
  }
  return entered;
}

}  // namespace

OperatorPin::OperatorPin(const char* name, const AccessList& accesses) {
  if (C10_UNLIKELY(accesses.SeveralDevices())) {
    entered_ = EnterEachDevice(name, accesses);
    return;
  }
  int device = accesses.device();
  if (!accesses.SawCuda()) {
    c10::DeviceIndex current = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&current));
    device = current;
  }
  Enter(device, name, accesses.All());
  entered_ = 1;
}

}  // namespace stratalloc
