// SPDX-License-Identifier: Apache-2.0
// What a process left in its file of event rings (allocator/events), be it
// killed in the middle of a write: every event that is whole, and the names.
//
// Nothing in the file is believed: each number is held against the file's size
// before it is used, so a truncated, torn or hostile file gives an error or
// fewer events, and memory in proportion to the file alone.
//
// Thread-safety: any thread. Failure: kIo where the file cannot be read,
// kCorrupt where it is no such file, with path, why, and what to do.
#ifndef STRATALLOC_TELEMETRY_RECORDING_AREA_FILE_H_
#define STRATALLOC_TELEMETRY_RECORDING_AREA_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/result.h"
#include "allocator/events/event_area.h"
#include "telemetry/recording/collect.h"

namespace stratalloc {

struct NameRow {
  NameKind kind;
  std::uint32_t id;
  std::string text;
};

struct AreaContent {
  std::vector<RingEvents> rings;
  std::vector<NameRow> names;
  EventClock clock;
  std::int64_t unix_ns = 0;  // when time is 0
  std::uint64_t process = 0;
  bool redacted = false;  // what is made of it has no names
  // Events that were overwritten or torn; of threads without a ring; names
  // that had no room or are torn.
  std::uint64_t overwritten = 0, events_lost = 0, names_lost = 0;
  std::uint64_t stacks_lost = 0;  // mallocs whose line is known alone
};

Result<AreaContent> ReadAreaFile(const std::string& path);
// Of bytes as the file has them: 8-byte aligned.
Result<AreaContent> ReadArea(const char* bytes, std::uint64_t size,
                             const std::string& path);
// What an area has besides events.
AreaContent ReadNames(const EventAreaHead& head);

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDING_AREA_FILE_H_
