// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still touch before the kernel kills a
// process or slows this one: what the machine has available, and what each
// memory cgroup above the process has left. Version 1 and 2, of version 2 also
// memory.high, above which each allocation is delayed. Page cache that can be
// dropped counts as free. The only reader of either in the project: slabs ask
// before they are touched, and Python (stratalloc_host_memory) before it works
// a budget out.
//
// Thread-safety: reads files only; any thread. Costs about 50 us: for slabs,
// not for buffers.
// Fails: never. What cannot be read does not limit.
#ifndef STRATALLOC_TIERING_HOST_MEMORY_LIMIT_H_
#define STRATALLOC_TIERING_HOST_MEMORY_LIMIT_H_

#include <string>

#include "allocator/base/bytes.h"

namespace stratalloc {

inline constexpr Bytes kNoMemoryLimit = ~Bytes{0};

// `root` stands before /proc and /sys/fs/cgroup, for tests.
Bytes AvailableHostMemory(const std::string& root = "");
// The groups' part of it.
Bytes MemoryGroupsLeft(const std::string& root = "");
// What the machine has or the tightest group allows, in use or not.
Bytes TotalHostMemory(const std::string& root = "");

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_HOST_MEMORY_LIMIT_H_
