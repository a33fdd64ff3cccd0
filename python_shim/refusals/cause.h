// SPDX-License-Identifier: Apache-2.0
// Cause of a refused request: the sentences that the exception has behind
// native's first words. They name what holds the memory and what to do about
// it, each size once.
//
// Pure functions of plain facts; add_cause.h gathers them.
// Thread-safety: any thread, no lock. Errors: none.
#ifndef STRATALLOC_PYTHON_SHIM_REFUSALS_CAUSE_H_
#define STRATALLOC_PYTHON_SHIM_REFUSALS_CAUSE_H_

#include <functional>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/cuda/nvml.h"
#include "allocator/explain/staying.h"
#include "allocator/explain/trials.h"

namespace stratalloc {

struct RefusalFacts {
  // A scope and category with memory on the device.
  struct Holder {
    std::string name;
    Category category = Category::kUnknown;
    Bytes bytes = 0;
    bool named = true;  // false: of no scope
  };
  // kEnded: by disable(); kRefused: not on this device.
  enum class Tiering { kOn, kOff, kEnded, kRefused };

  bool is_operator = false;
  ScopeId asks = kRootScope;  // the scope that the request is charged to
  Bytes asked = 0;  // rounded; of an operator: of the handles it needs
  MemoryParts parts;
  Bytes gpu_limit = 0;  // the setting
  Tiering tiering = Tiering::kOn;
  bool tiers_below = true;  // a host or a disk budget
  Staying stays;
  Bytes staying = 0;            // that no eviction could take
  std::vector<Holder> holders;  // the most bytes first
  std::vector<ProcessMemory> processes;
  unsigned own_pid = 0;
  Bytes room_lacking = 0;  // below the device, for what would have to leave
};

// Makes the request again on a copy of the device's blocks (trials.h).
using TryAgain = std::function<Tried(const Trial&)>;

// "Activations hold 224.00 MiB: reduce the batch size or use
// torch.utils.checkpoint. Largest: Net.0.1, 32.00 MiB."
std::string RefusalCause(const RefusalFacts& facts, const TryAgain& again);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_REFUSALS_CAUSE_H_
