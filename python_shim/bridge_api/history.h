// SPDX-License-Identifier: Apache-2.0
// The history of events (allocator/heap/history.h): what torch says of it, and
// what was recorded. For threads and failure see setup.h; nothing here fails.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_HISTORY_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_HISTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/ids.h"
#include "allocator/values/pool_id.h"
#include "allocator/values/trace_event.h"

namespace stratalloc::core {

// The clock of TracePoint::time. Before the functions below.
STRATALLOC_API void SetHistoryClock(std::int64_t (*clock)());
// Of every device there is, opened or not.
STRATALLOC_API void ConfigureHistory(const HistoryOptions& options);
// Called with every event from now on, under the device lock, whether history
// is on or off. nullptr for none.
STRATALLOC_API void TrackHistory(void (*tracker)(const TraceEvent&));
// The context of what this thread does next; nullptr ends it. The last owner
// may be a ring that lets go of it under the device lock: its end must neither
// wait nor take the GIL.
STRATALLOC_API void SetHistoryContext(HistoryContext context);
// Of the allocated block that begins at `address`: where it was asked for, or
// nullptr.
STRATALLOC_API HistoryContext ContextOf(Address address);
// Records `label` for the allocated block that begins at `address`; false if
// there is none.
STRATALLOC_API bool Annotate(Address address, const std::string& label);
// What was recorded, oldest first.
STRATALLOC_API std::vector<TraceEvent> HistoryEvents(int device);
STRATALLOC_API void RecordSnapshot(int device, PoolId pool, Bytes active);

// Labels of the thread, stamped on every event.
STRATALLOC_API void PushCompileContext(std::string text);
STRATALLOC_API void PopCompileContext();
STRATALLOC_API std::string& UserMetadata();  // this thread's

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_HISTORY_H_
