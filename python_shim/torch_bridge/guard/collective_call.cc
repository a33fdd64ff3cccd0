// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/collective_call.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "python_shim/bridge_api/operators.h"
#include "python_shim/bridge_api/pins.h"
#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/guard/operator_pin.h"

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
std::vector<AddressRange> WhatMayLeave(const AccessList& accesses) {
  std::vector<AddressRange> ranges;
  for (const Access& access : accesses.All()) {
    if (core::MayLeave(access.address)) {
      ranges.push_back({access.address, access.bytes});
    }
  }
  return ranges;
}

void Pin(const char* name, int device, const std::vector<AddressRange>& ranges,
         CollectivePins& pins) {
  if (ranges.empty()) return;
  // Room first: a pin that is taken must not be lost.
  pins.reserve(pins.size() + ranges.size());
  const Result<CollectivePins> taken =
      core::PinBlocks(name, PinReason::kCollective, ranges);
  if (!taken) {
    std::vector<Access> accesses;
    for (const AddressRange& range : ranges) {
      accesses.push_back({range.address, range.bytes, /*written=*/false});
    }
    ThrowError(core::Refusal(taken.error(), device, kDefaultStream, accesses));
  }
  pins.insert(pins.end(), taken->begin(), taken->end());
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
  Pin(name, accesses.device(), WhatMayLeave(accesses), pins_);
}

CollectiveCall::~CollectiveCall() {
  if (!pins_.empty()) CollectivesUnderWay::Unpin(pins_, /*unobserved=*/true);
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
    CollectivesUnderWay::Unpin(std::exchange(pins_, {}),
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
  std::vector<AddressRange> ranges = WhatMayLeave(made);
  const auto is_operand = [this](const AddressRange& range) {
    const std::span<const Access> all = accesses_.All();
    return std::any_of(all.begin(), all.end(), [&](const Access& access) {
      return access.address == range.address;
    });
  };
  ranges.erase(std::remove_if(ranges.begin(), ranges.end(), is_operand),
               ranges.end());
  Pin(name_, accesses_.device(), ranges, pins_);
}

}  // namespace stratalloc
