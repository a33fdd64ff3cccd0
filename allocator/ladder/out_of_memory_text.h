// SPDX-License-Identifier: Apache-2.0
// First sentences of an out of memory: native's, with the same numbers, because
// libraries and log readers parse them; and behind them why eviction ended. The
// cause and the remedy follow (python_shim/refusals/cause.h).
//
// A pure function of plain facts, which DeviceAllocator gathers. Thread-safety:
// any thread, no lock. Fails: never.
#ifndef STRATALLOC_ALLOCATOR_LADDER_OUT_OF_MEMORY_TEXT_H_
#define STRATALLOC_ALLOCATOR_LADDER_OUT_OF_MEMORY_TEXT_H_

#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/cuda/nvml.h"

namespace stratalloc {

struct OutOfMemoryFacts {
  Bytes requested = 0;
  DeviceIndex device{0};
  Bytes total = 0, free = 0;  // of the card, as the driver tells
  std::vector<ProcessMemory> processes;
  unsigned own_pid = 0;  // of this process, where it is listed among them
  // Why no more could be evicted; empty where nothing ever is.
  std::string refusal;
  // Why nothing can be evicted from this device at all; may be empty.
  std::string why_no_reclaimer;
};

std::string OutOfMemoryText(const OutOfMemoryFacts& facts);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_LADDER_OUT_OF_MEMORY_TEXT_H_
