// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/operator_pin.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <bitset>

#include "python_shim/torch_bridge/bridge_error.h"
#include "python_shim/torch_bridge/conversions.h"

namespace stratalloc {
namespace {

// Not inlined: the error's 2 KiB must not stay on the stack under the kernel.
[[gnu::noinline]] void Enter(int device, const char* name,
                             const stratalloc_access* accesses, int count) {
  // The stream matters to the bytes that are used on it; most operators of a
  // forward have none that could leave.
  uint64_t stream = 0;
  if (count > 0) {
    stream = StreamId(
        c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
  }
  stratalloc_error error;
  if (stratalloc_operator_enter(device, stream, name, accesses, count,
                                &error) != 0) {
    ThrowError(error);
  }
}

[[gnu::noinline]] int EnterEachDevice(const char* name, const AccessList& all) {
  std::bitset<128> seen;
  int entered = 0;
  try {
    for (int i = 0; i < all.size(); ++i) {
      const int device = all.DeviceOf(i);
      if (seen[static_cast<size_t>(device)]) continue;
      seen.set(static_cast<size_t>(device));
      c10::SmallVector<stratalloc_access, AccessList::kInline> part;
      for (int j = i; j < all.size(); ++j) {
        if (all.DeviceOf(j) == device) part.push_back(all.data()[j]);
      }
      Enter(device, name, part.data(), static_cast<int>(part.size()));
      ++entered;
    }
    if (!seen[static_cast<size_t>(all.device())]) {
      Enter(all.device(), name, nullptr, 0);
      ++entered;
    }
  } catch (...) {
    for (; entered > 0; --entered) stratalloc_operator_leave();
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
  Enter(device, name, accesses.data(), accesses.size());
  entered_ = 1;
}

}  // namespace stratalloc
