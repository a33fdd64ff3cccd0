// SPDX-License-Identifier: Apache-2.0
// One event as a recording has it: in nanoseconds since the recording's start,
// in its place in the order of all threads. 48 bytes, little endian; Python's
// EVENT (telemetry/python/model/model.py) is the same.
#ifndef STRATALLOC_TELEMETRY_RECORDING_FILE_EVENT_H_
#define STRATALLOC_TELEMETRY_RECORDING_FILE_EVENT_H_

#include <cstdint>
#include <type_traits>

namespace stratalloc {

struct FileEvent {
  std::int64_t time = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t aux = 0;  // durations in nanoseconds; of blocks their size
  std::uint32_t scope = 0;
  std::uint32_t site = 0;
  std::uint16_t pool = 0;
  std::uint16_t thread = 0;  // index of the recording's threads
  std::uint8_t kind = 0;     // EventKind
  std::uint8_t category = 0;
  std::uint8_t device = 0;
  std::uint8_t flags = 0;

  friend bool operator==(const FileEvent&, const FileEvent&) = default;
};
static_assert(sizeof(FileEvent) == 48 &&
              std::is_trivially_copyable_v<FileEvent>);

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDING_FILE_EVENT_H_
