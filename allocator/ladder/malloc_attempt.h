// SPDX-License-Identifier: Apache-2.0
// One malloc while it climbs the ladder (ladder.h): what it asks for, what may
// be done for it, and what came of it so far.
//
// A plain value of the thread that asks, without a lock. The allocator fills in
// the first part, rungs the second, and the searches of ladder_device.h the
// third. A malloc that is tried again from the beginning
// (DeviceWaits::WhenReady) has a new one.
#ifndef STRATALLOC_ALLOCATOR_LADDER_MALLOC_ATTEMPT_H_
#define STRATALLOC_ALLOCATOR_LADDER_MALLOC_ATTEMPT_H_

#include <optional>

#include "allocator/base/bytes.h"
#include "allocator/base/result.h"
#include "allocator/heap/pool.h"
#include "allocator/values/charge_account.h"
#include "allocator/values/views.h"

namespace stratalloc {

// How far a search may take memory from the driver.
enum class Reach {
  kCached,     // nothing at all: what is cached
  kEmergency,  // up to the emergency threshold
  kLimit,
};

struct MallocAttempt {
  // ---- what is asked for -------------------------------------------------

  PoolKey key;     // the first rung finds its route
  Bytes size = 0;  // rounded
  Bytes requested = 0;
  Charge charge;
  bool raw = false;
  // By an observer or a callback of the ladder itself: it may search, grow and
  // release what is cached, and evicts nothing (design rule 13).
  bool nested = false;
  // The device has no virtual memory management: all its memory is unmanaged.
  bool all_unmanaged = false;

  // ---- what may be done for it -------------------------------------------

  // The Reclaimer may be asked: there is one, tiering is on, the request is not
  // nested, and this thread captures nothing. Where others capture, that is
  // waited for: nothing leaves before their captures are over.
  bool may_reclaim = false;
  // It might be but for a capture of its own.
  bool captured = false;
  // Its unmanaged segments are cudaMalloc's, not somebody else's allocator's.
  bool unmanaged = false;
  // It was refused behind those who wait, and is not queued again.
  bool queued = false;
  // Under pressure memory between the emergency threshold and the limit is left
  // alone while something cold can make room instead, so that other users of
  // the card keep some.
  bool soft = false;

  // ---- what came of it ---------------------------------------------------

  Bytes lacking = 0;  // at the last search, at least
  // A driver that fails for another reason than memory fails whatever is given
  // back. Of the last search; nothing if that was for want of memory.
  std::optional<Error> failed;
  // The scope's limit: nothing that is given back would serve it.
  std::optional<Error> forbidden;
  bool retried = false;                          // counted as a retry, once
  std::optional<Result<AllocatedBlock>> answer;  // ends the climb

  Reach reach() const { return soft ? Reach::kEmergency : Reach::kLimit; }
  // `failed` is the answer: native's words, then which call. Returns true.
  // REQUIRES: there is one.
  bool EndFailed() {
    const char* const what =
        all_unmanaged ? "CUDA error: " : "CUDA driver error: ";
    answer = tl::unexpected(Error{failed->code, what + failed->message});
    return true;
  }
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_LADDER_MALLOC_ATTEMPT_H_
