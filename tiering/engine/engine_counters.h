// SPDX-License-Identifier: Apache-2.0
// What the engine has done since it was made, as a report tells it. Plain
// numbers of each device: its arbiter's holder adds, and Engine::Counters
// returns the sum.
#ifndef STRATALLOC_TIERING_ENGINE_ENGINE_COUNTERS_H_
#define STRATALLOC_TIERING_ENGINE_ENGINE_COUNTERS_H_

#include <cstdint>

#include "allocator/base/bytes.h"

namespace stratalloc {

struct EngineCounters {
  std::uint64_t evicted_handles = 0;      // left the device
  std::uint64_t restored_handles = 0;     // returned
  std::uint64_t restored_before_use = 0;  // ... by plan or guard
  std::uint64_t planned_handles = 0;      // ... by plan
  std::uint64_t clean_drops = 0;        // left without a copy: checksums equal
  std::uint64_t dirty_by_checksum = 0;  // looked clean, was not
  Bytes evicted_bytes = 0, restored_bytes = 0;
  Bytes to_disk_bytes = 0, from_disk_bytes = 0;
  Bytes stored_bytes = 0;  // what those to the disk were stored in
  std::uint64_t stalls = 0, stall_ns = 0;

  // What moves of one device add.
  void Add(const EngineCounters& other) {
    evicted_handles += other.evicted_handles;
    restored_handles += other.restored_handles;
    restored_before_use += other.restored_before_use;
    planned_handles += other.planned_handles;
    clean_drops += other.clean_drops;
    dirty_by_checksum += other.dirty_by_checksum;
    evicted_bytes += other.evicted_bytes;
    restored_bytes += other.restored_bytes;
  }
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_ENGINE_COUNTERS_H_
