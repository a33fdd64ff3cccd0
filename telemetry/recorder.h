// SPDX-License-Identifier: Apache-2.0
// Recordings of the running process, and of one that was killed: what begins
// one, what it says, and the file it becomes.
//
// Begin: every device tells what it has, and from the same moment on each of
// its events is in the rings. End writes what happened since, with what every
// device has then. Between the two nothing is kept but the rings.
//
// Thread-safety: every method, one kRegistry lock; recordings overlap if they
// like, since each only remembers from where it reads. Failure: as
// EventRecorder and WriteRecording say. Lifetime: the process's.
#ifndef STRATALLOC_TELEMETRY_RECORDER_H_
#define STRATALLOC_TELEMETRY_RECORDER_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/result.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {

// What one device has, as a recording says it: {"index", "name", "capacity",
// "segments", "stats", "order"}; `order`: the number of its newest event.
using DeviceStates = std::function<std::vector<nlohmann::json>()>;

struct RecordingOptions {
  bool redact = false;   // names, files and commands are left out
  nlohmann::json about;  // of the program, from whoever knows
};

class Recorder {
 public:
  static Recorder& Get();

  // The number of a recording that begins now.
  Result<std::uint64_t> Begin(const std::optional<EventAreaOptions>& area,
                              const DeviceStates& states);
  // Writes it to `path`, and forgets it if `over`; no events are recorded any
  // more once all are over.
  Status Write(std::uint64_t recording, const std::string& path,
               const RecordingOptions& options, const DeviceStates& states,
               bool over);

  // A recording that nobody wants ends.
  void Forget(std::uint64_t recording);

  // Makes a recording of what a process left in `area`.
  static Status Recover(const std::string& area, const std::string& path,
                        bool redact);

 private:
  struct Open {
    std::uint64_t number = 0;
    std::vector<std::uint64_t> since;
    std::uint64_t ticks = 0;
    std::int64_t unix_ns = 0;
    std::vector<nlohmann::json> start;
    std::uint64_t events_lost = 0;
  };
  Recorder() = default;
  void EndLocked(std::uint64_t recording) REQUIRES(mutex_);

  Mutex mutex_{LockRank::kRegistry};
  std::uint64_t numbers_ GUARDED_BY(mutex_) = 0;
  std::vector<Open> open_ GUARDED_BY(mutex_);
};

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDER_H_
