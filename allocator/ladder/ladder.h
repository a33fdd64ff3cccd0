// SPDX-License-Identifier: Apache-2.0
// The out-of-memory ladder: what a malloc that took the whole way tries, one
// rung after the other, until one has an answer. The list below is the order.
//
//   search                   settles what is over; then what is cached
//   ask others to free       torch's FreeMemoryCallbacks; then what is cached
//   queue behind who waits   who was refused and waits comes first: the
//                            Reclaimer's turn is taken behind them
//   restore away space       free space in a handle that is away comes back
//                            before another handle is opened
//   grow                     by memory of the driver, up to the threshold of
//                            garbage collection; under pressure up to the
//                            emergency threshold
//   collect old segments     without virtual memory management: what was
//                            searched past for long goes
//   buy a segment            of a pool whose memory comes in one piece
//   borrow                   of private pools that lend; with garbage
//                            collection only after the next rung, as native
//   release cached           cached handles of all pools, as many as are
//                            needed, after their streams were waited for
//   buy after the release
//   borrow after the release
//   move within the MemPool  its own cached handles, where no graph has their
//                            addresses
//   evict what is cold       under pressure: what is cold for good, then memory
//                            between the emergency threshold and the limit
//   wait for events          of freed blocks: what came free is handed out
//   release all              whatever else is cached
//   outlast releases         other threads' that are under way
//   evict                    the Reclaimer, unless it would not fit at all
//   ask others again         for what ended while this request waited
//   refuse                   kOutOfMemory, native's text
//
// A driver that fails for another reason than memory ends the climb with its
// own error, since nothing that is given back would mend it: at once where a
// segment is bought and in what is tried between evictions, else after the next
// rung with `failure_ends`.
//
// A nested malloc leaves out what asks the Reclaimer, waits for events, or
// gives up all that is cached; one of a thread that captures, what asks the
// Reclaimer.
//
// No CUDA here, no blocks and no lock of the device: a rung knows one request
// (malloc_attempt.h) and what it may ask for (ladder_device.h).
// Thread-safety: any thread; the caller holds no lock. May wait for events,
// copies, disk and other threads. Fails: the answer says how.
#ifndef STRATALLOC_ALLOCATOR_LADDER_LADDER_H_
#define STRATALLOC_ALLOCATOR_LADDER_LADDER_H_

#include <span>

#include "allocator/base/result.h"
#include "allocator/ladder/ladder_device.h"
#include "allocator/ladder/malloc_attempt.h"
#include "allocator/values/views.h"

namespace stratalloc {

struct Rung {
  const char* name;
  // True: the attempt has its answer.
  bool (*climb)(MallocAttempt& attempt, LadderDevice& device);
  // The climb ends here if the last search found the driver failing.
  bool failure_ends = false;
};

// From the lowest rung to the last, which always has an answer.
std::span<const Rung> Ladder();

Result<AllocatedBlock> Climb(MallocAttempt& attempt, LadderDevice& device);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_LADDER_LADDER_H_
