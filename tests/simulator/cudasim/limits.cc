// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/limits.h"

#include <algorithm>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {

Status Limits::Get(const Card& card, int device, int limit,
                   size_t* value) const {
  if (value == nullptr || limit < 0) return kInvalidValue;
  if (auto found = set_.find({device, limit}); found != set_.end()) {
    *value = found->second;
    return kOk;
  }
  switch (static_cast<Limit>(limit)) {
    case Limit::kStackSize:
      *value = 1024;
      return kOk;
    case Limit::kPrintfFifo:
      *value = size_t{1} << 20;
      return kOk;
    case Limit::kMallocHeap:
      *value = size_t{8} << 20;
      return kOk;
    case Limit::kSyncDepth:
      // Gone from compute capability 9.0 on.
      if (card.compute_major >= 9) return kUnsupportedLimit;
      *value = 2;
      return kOk;
    case Limit::kPendingLaunches:
      *value = 2048;
      return kOk;
    case Limit::kL2FetchGranularity:
      *value = 64;
      return kOk;
    case Limit::kPersistingL2:
      *value = 0;
      return kOk;
  }
  return kUnsupportedLimit;
}

Status Limits::Set(const Card& card, int device, int limit, size_t value) {
  size_t now = 0;
  if (const Status status = Get(card, device, limit, &now); status != kOk) {
    return status;
  }
  if (static_cast<Limit>(limit) == Limit::kPersistingL2) {
    value = std::min<size_t>(value, card.persisting_l2_bytes);
  } else if (static_cast<Limit>(limit) == Limit::kL2FetchGranularity) {
    value = std::min<size_t>(value, 128);
  }
  set_[{device, limit}] = value;
  return kOk;
}

Status GetLimit(int limit, size_t* value) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.limits.Get(CurrentCard(), ThisThread().device, limit, value);
}

Status SetLimit(int limit, size_t value) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.limits.Set(CurrentCard(), ThisThread().device, limit, value);
}

}  // namespace cudasim
