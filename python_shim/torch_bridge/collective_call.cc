// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/collective_call.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "python_shim/torch_bridge/bridge_error.h"
#include "python_shim/torch_bridge/operator_pin.h"

namespace stratalloc {
namespace {

bool StreamCaptures(int device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device))
          .stream(),
      &status));
  return status != cudaStreamCaptureStatusNone;
}

// Activations never leave and need no pin.
std::vector<stratalloc_range> WhatMayLeave(const AccessList& accesses) {
  std::vector<stratalloc_range> ranges;
  for (int i = 0; i < accesses.size(); ++i) {
    const stratalloc_access& access = accesses.data()[i];
    if (stratalloc_may_leave(access.address) != 0) {
      ranges.push_back({access.address, access.bytes});
    }
  }
  return ranges;
}

void Pin(const char* name, const std::vector<stratalloc_range>& ranges,
         CollectivePins& pins) {
  if (ranges.empty()) return;
  const size_t before = pins.size();
  pins.resize(before + ranges.size());
  stratalloc_error error;
  if (stratalloc_pin_blocks(name, STRATALLOC_PIN_COLLECTIVE, ranges.data(),
                            static_cast<int>(ranges.size()),
                            pins.data() + before, &error) != 0) {
    pins.resize(before);
    ThrowError(error);
  }
}

}  // namespace

CollectiveCall::CollectiveCall(const char* name,
                               const CollectiveOperator& collective,
                               const AccessList& accesses,
                               const torch::jit::Stack& stack)
    : name_(name), collective_(collective), accesses_(accesses) {
  CollectivesUnderWay& all = CollectivesUnderWay::Get();
  CollectivesUnderWay::Bury();
  all.PollOldest();
  if (!accesses.SawCuda()) return;
  captured_ = StreamCaptures(accesses.device());
  if (captured_) return;
  group_ = collective.Group(stack);
  synchronous_ = collective.IsSynchronous(stack);
  Pin(name, WhatMayLeave(accesses), pins_);
}

CollectiveCall::~CollectiveCall() {
  if (!pins_.empty()) CollectivesUnderWay::Release(pins_, /*unobserved=*/true);
}

void CollectiveCall::Returned(const torch::jit::Stack& stack) {
  if (captured_) return;
  PinResults(stack);
  if (pins_.empty()) return;
  CollectivesUnderWay& all = CollectivesUnderWay::Get();
  if (group_ && all.AddToBatch(group_, pins_)) return;
  if (const Holder work = collective_.Work(stack)) {
    all.Add(std::exchange(pins_, {}), work);
  } else if (synchronous_) {
    CollectivesUnderWay::Release(std::exchange(pins_, {}),
                                 /*unobserved=*/false);
  }
}

void CollectiveCall::PinResults(const torch::jit::Stack& stack) {
  uint64_t lo, hi;
  if (!AnythingEvictable(&lo, &hi)) return;
  AccessList made(lo, hi);
  for (const c10::IValue& result : collective_.Results(stack)) {
    made.AddValue(result, TensorArgument{});
  }
  // Most give their operands back.
  std::vector<stratalloc_range> ranges = WhatMayLeave(made);
  const auto is_operand = [this](const stratalloc_range& range) {
    const stratalloc_access* const end = accesses_.data() + accesses_.size();
    return std::any_of(accesses_.data(), end, [&](const auto& access) {
      return access.address == range.address;
    });
  };
  ranges.erase(std::remove_if(ranges.begin(), ranges.end(), is_operand),
               ranges.end());
  Pin(name_, ranges, pins_);
}

}  // namespace stratalloc
