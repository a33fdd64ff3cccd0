// SPDX-License-Identifier: Apache-2.0
// One event of the history of a device, and what is asked of the history
// (history.h).
#ifndef STRATALLOC_ALLOCATOR_VALUES_TRACE_EVENT_H_
#define STRATALLOC_ALLOCATOR_VALUES_TRACE_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/values/pool_id.h"

namespace stratalloc {

// Where in the program something happened: the bridge's (a stack of frames),
// opaque here, null while nothing is recorded. Counted.
using HistoryContext = std::shared_ptr<void>;

// Values and order of torch's TraceEntry::Action.
enum class TraceAction : std::uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOutOfMemory,  // address = free bytes of the card
  kAnnotate,     // of a living block, with a label of its own
};

// Why something happened that no program asked for.
enum class TraceCause : std::uint8_t { kNone, kEvicted, kRestored };

struct TracePoint {
  TraceAction action = TraceAction::kAlloc;
  DeviceIndex device{};
  Address address = 0;
  Bytes bytes = 0;
  StreamId stream = kDefaultStream;
  PoolId pool;
  std::int64_t time = 0;  // the clock's
  HistoryContext context;
  // What torch's history does not have: why, who owns the block, which line
  // asked for it, and the number of the pool in the event rings.
  TraceCause cause = TraceCause::kNone;
  Category category = Category::kUnknown;
  bool in_frame = false;  // temporary until the frame ends
  std::uint16_t pool_number = 0;
  Bytes size = 0;  // of a block, `bytes` being what was asked for
  ScopeId scope = kRootScope;
  SiteId site = kNoSite;
};

struct TraceEvent : TracePoint {
  std::string compile_context;
  std::string user_metadata;
  // What the allocator itself did it for; "" for nothing.
  std::string internal_metadata;
};

struct HistoryOptions {
  bool enabled = false;
  bool contexts_in_events = false;
  std::size_t max_entries = 1;
  bool clear = false;
  std::uint32_t skipped = 0;  // bit per action
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_TRACE_EVENT_H_
