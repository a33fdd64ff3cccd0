// SPDX-License-Identifier: Apache-2.0
// What a program knows about one of its blocks: where it is, what was written
// to it last and which streams used it.
//
// Only a few words of a block are written and compared: both ends and both
// sides of every 2 MiB edge. That every other byte survives a move is what the
// checksums of the engine's own copies say (tiering/engine/eviction.cc).
//
// Thread-safety: a block belongs to one thread, or `mutex` guards it.
#ifndef STRATALLOC_TESTS_SYSTEM_STRESS_SHADOW_H_
#define STRATALLOC_TESTS_SYSTEM_STRESS_SHADOW_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/heap/private_pool.h"

namespace stratalloc {

struct Shadow {
  Address address = 0;
  Bytes bytes = 0;
  std::size_t place = 0;  // World::places
  StreamId home = kDefaultStream;
  PoolId pool;                     // private, if it was allocated in one
  std::uint64_t pattern = 0;       // 0: nothing was written
  bool transient = false;          // stays on the device while it lives
  bool lost = false;               // an error said that its bytes are lost
  std::vector<StreamId> used;      // streams with accesses, newest state only
  std::vector<StreamId> recorded;  // of those, record_stream'ed
  std::mutex mutex;                // for blocks that threads share

  void Fill(std::uint64_t new_pattern);
  bool Holds() const;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_STRESS_SHADOW_H_
