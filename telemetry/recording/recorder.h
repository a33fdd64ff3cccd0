// SPDX-License-Identifier: Apache-2.0
// Recordings of the running process, and of one that was killed: what begins
// one, what it says, and the file it becomes.
//
// Begin: every device tells what it has, and from the same moment on each of
// its events is in the rings. Write makes a file of what happened since, with
// what every device has by then, as often as anybody likes and, where it is
// over, for the last time. Between the two nothing is kept but the rings.
//
// Thread-safety: every method; recordings overlap if they like, since each only
// remembers from where it reads. The kRegistry lock is for the list of those
// under way: devices are asked, and files are written, without it, so that a
// slow disk keeps nobody from beginning or ending another one.
// Failure: as EventRecorder and WriteRecording say; kNotFound for a recording
// that was over before. Lifetime: the process's.
#ifndef STRATALLOC_TELEMETRY_RECORDING_RECORDER_H_
#define STRATALLOC_TELEMETRY_RECORDING_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/result.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {

// What one device has, as a recording says it: {"index", "capacity",
// "segments", "stats", "order"}; `order`: the number of its newest event. In
// "temporaries", [address, size, requested, scope, frame], are blocks that are
// temporary until their frame ends (allocator/state/frame_accounts.h).
using DeviceStates = std::function<std::vector<nlohmann::json>()>;

struct RecordingOptions {
  bool redact = false;   // names, files and commands are left out
  std::string level;     // of telemetry
  nlohmann::json about;  // of the program, from whoever knows
};

class Recorder {
 public:
  static Recorder& Get();

  // The number of a recording that begins now. `states` is called before this
  // returns, without a lock, as it is by Write.
  Result<std::uint64_t> Begin(const std::optional<EventAreaOptions>& area,
                              const DeviceStates& states) EXCLUDES(mutex_);
  // Writes it to `path`. `over`: it has ended, whether or not that succeeds; no
  // events are recorded any more once all have.
  Status Write(std::uint64_t recording, const std::string& path,
               const RecordingOptions& options, const DeviceStates& states,
               bool over) EXCLUDES(mutex_);

  // In a forked child, whose recordings are its parent's: there are none.
  static void AbandonAfterFork();

  // A recording that nobody wants ends.
  void Forget(std::uint64_t recording) EXCLUDES(mutex_);

  // Makes a recording of what a process left in `area`.
  static Status Recover(const std::string& area, const std::string& path,
                        bool redact);

 private:
  struct Open {
    std::uint64_t number = 0;
    std::vector<std::uint64_t> since;
    std::uint64_t ticks = 0;
    std::int64_t unix_ns = 0;
    // nullptr until Begin has asked the devices.
    std::shared_ptr<const std::vector<nlohmann::json>> start;
    std::uint64_t events_lost = 0, stacks_lost = 0;  // before
    bool over = false;  // it is being written for the last time
  };
  Recorder() = default;
  static std::atomic<Recorder*>& Place();
  // nullptr for one that is over.
  Open* FindLocked(std::uint64_t recording) REQUIRES(mutex_);

  Mutex mutex_{LockRank::kRegistry};
  std::uint64_t numbers_ GUARDED_BY(mutex_) = 0;
  std::vector<Open> open_ GUARDED_BY(mutex_);
};

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDING_RECORDER_H_
