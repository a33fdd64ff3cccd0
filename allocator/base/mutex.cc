// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/mutex.h"

#ifdef STRATALLOC_DEBUG
#include <string>

#include "allocator/base/check.h"

namespace stratalloc {
namespace {
// Ranks this thread holds, in order. 16 is far above the ten ranks there are.
thread_local int held_ranks[16];
thread_local int held_count = 0;
}  // namespace

void Mutex::NoteLock() {
  const int rank = static_cast<int>(rank_);
  for (int i = 0; i < held_count; ++i) {
    STRATALLOC_CHECK(held_ranks[i] < rank,
                     "lock order: rank " + std::to_string(rank) +
                         " taken while rank " + std::to_string(held_ranks[i]) +
                         " is held (allocator/base/lock_ranks.h)");
  }
  held_ranks[held_count++] = rank;
}

void Mutex::NoteUnlock() {
  const int rank = static_cast<int>(rank_);
  for (int i = held_count - 1; i >= 0; --i) {
    if (held_ranks[i] != rank) continue;
    for (int j = i; j + 1 < held_count; ++j) held_ranks[j] = held_ranks[j + 1];
    --held_count;
    return;
  }
}

}  // namespace stratalloc
#endif
